// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"flag"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"crem.dev/crem/internal/clidoc"
	"crem.dev/crem/test/oldercrds"
)

var update = flag.Bool("update", false, "write docs/cli.md anew")

// TestCommandLinePage: docs/cli.md says what the program says.
func TestCommandLinePage(t *testing.T) { clidoc.Check(t, "../../docs/cli.md", newRoot(), *update) }

func TestCommandLine(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "")
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	for _, row := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"version"}, exitOK, ""},
		{[]string{"--help"}, exitOK, "not on the data path"},
		{[]string{"walk"}, exitUsage, "walk"},
		{[]string{"run", "fast"}, exitUsage, "takes no argument"},
		{[]string{"run", "--speed", "1"}, exitUsage, "--help lists the flags"},
		{[]string{"run"}, exitUsage, "name it with --namespace"},
		{[]string{"run", "--namespace", "Crem System"}, exitUsage, "is no name of a namespace"},
		{[]string{"run", "--namespace", "crem-system", "--collect-after", "-1s"}, exitUsage, "write a time such as 30m"},
		{[]string{"run", "--namespace", "crem-system", "--log-format", "xml"}, exitUsage, "write text or json"},
		{[]string{"run", "--namespace", "crem-system"}, exitError, "no way to the API server"},
		{[]string{"run", "--namespace", "crem-system", "--kubeconfig", "/does/not/exist"}, exitError, "name a kubeconfig with --kubeconfig"},
	} {
		t.Run(strings.Join(row.args, " "), func(t *testing.T) {
			var out bytes.Buffer
			if code := execute(context.Background(), row.args, &out, &out); code != row.code || !strings.Contains(out.String(), row.says) {
				t.Errorf("code %d: %s", code, out.String())
			}
		})
	}
}

// TestOtherDefinitions: an operator ends when the API server lacks other fields than it did, so that it is started anew, and for nothing else.
func TestOtherDefinitions(t *testing.T) {
	description := func(missing ...string) []byte { return oldercrds.Description(t, "../../config/crd/bases", missing...) }
	var now atomic.Pointer[[]byte]
	asked := make(chan struct{}, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(*now.Load())
		asked <- struct{}{}
	}))
	defer server.Close()
	api, err := describer(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name          string
		before, after []byte
	}{
		{"those of this release come", description("CREMNode status.excluded"), description()},
		{"older ones come", description(), description("CREMNode status.excluded")},
	} {
		t.Run(row.name, func(t *testing.T) {
			now.Store(&row.before)
			fields := waitForCRDs(t.Context(), logr.Discard(), api, &healthServer{})
			<-asked
			ended := make(chan struct{})
			go func() {
				untilOthers(t.Context(), logr.Discard(), api, fields, time.Millisecond)
				close(ended)
			}()
			for _, same := range [][]byte{row.before, []byte("no description"), row.before} {
				now.Store(&same)
				for range 3 {
					select {
					case <-asked:
					case <-ended:
						t.Fatal("ended although nothing is another")
					}
				}
			}
			now.Store(&row.after)
			<-ended
		})
	}
}

func TestHealth(t *testing.T) {
	h, err := serveHealth("")
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	ask := func() (int, string) {
		w := httptest.NewRecorder()
		h.ready(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
		return w.Code, w.Body.String()
	}
	h.set("the API server knows no kind")
	if code, body := ask(); code != http.StatusServiceUnavailable || !strings.Contains(body, "knows no kind") {
		t.Errorf("%d %s", code, body)
	}
	h.set("")
	if code, _ := ask(); code != http.StatusOK {
		t.Error(code)
	}
	if _, err := serveHealth("nowhere:-1"); err == nil || !strings.Contains(err.Error(), "--health-addr") {
		t.Error(err)
	}
}
