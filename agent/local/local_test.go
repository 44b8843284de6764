// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/internal/agentclient"
)

// node is a Source with a fixed answer.
type node struct {
	status  agentapi.Status
	flows   []agentapi.Flow
	unready []string
}

func (n *node) Status(withFlows bool) (agentapi.Status, []agentapi.Flow) {
	if !withFlows {
		return n.status, nil
	}
	return n.status, n.flows
}
func (n *node) Unready() []string { return n.unready }

func example() *node {
	return &node{
		status: agentapi.Status{Node: "gw1", Generation: 3, AppliedGeneration: 3, Counters: map[string]uint64{"csf_source_packets": 12},
			Workers: []agentapi.Worker{{ID: 0, LastBeatAge: 0.001}, {ID: 1, LastBeatAge: 0.002}}},
		flows: []agentapi.Flow{
			{ID: "csf/10.1.0.5/10.2.0.7/4711/request", Role: "csf", Source: "10.1.0.5", K: 32, Loss: 0.0125},
			{ID: "crf/fd00:2::7/fd00:1::5/17/response", Role: "crf", Source: "fd00:2::7"},
		},
	}
}

// serve runs the real server on a real socket and gives its path.
func serve(t *testing.T, source Source) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "crem", "agent.sock")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, Handler(source)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return path
}

func TestSocketServesStatusAndFlows(t *testing.T) {
	n := example()
	client := agentclient.New(serve(t, n))
	status, err := client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(n.status, status); diff != "" {
		t.Errorf("status %s", diff)
	}
	flows, err := client.Flows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(n.flows, flows); diff != "" {
		t.Errorf("flows %s", diff)
	}
	for _, want := range n.flows { // IDs hold slashes and colons
		got, err := client.Flow(t.Context(), want.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("flow %s", diff)
		}
	}
	if _, err := client.Flow(t.Context(), "csf/1/2/3/request"); err == nil || !strings.Contains(err.Error(), "there is no flow csf/1/2/3/request: it ended, or was never seen here") {
		t.Errorf("unknown flow: %v", err)
	}
}

func TestNoFlowsAreAnEmptyList(t *testing.T) {
	flows, err := agentclient.New(serve(t, &node{})).Flows(t.Context())
	if err != nil || flows == nil || len(flows) != 0 {
		t.Errorf("%v %v", flows, err)
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	for _, r := range []*http.Request{
		httptest.NewRequest(http.MethodGet, "/", nil),
		httptest.NewRequest(http.MethodGet, "/v2/status", nil),
		httptest.NewRequest(http.MethodPost, "/v1/status", nil),
		httptest.NewRequest(http.MethodDelete, "/v1/flows/x", nil),
	} {
		w := httptest.NewRecorder()
		Handler(example()).ServeHTTP(w, r)
		if w.Code < 400 {
			t.Errorf("%s %s: %d", r.Method, r.URL, w.Code)
		}
	}
}

func TestSocketIsForItsOwnerOnly(t *testing.T) {
	info, err := os.Stat(serve(t, example()))
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("mode %o", mode)
	}
}

func TestListen(t *testing.T) {
	t.Run("replaces the socket of an agent that was killed", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "agent.sock")
		ln, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		ln.(*net.UnixListener).SetUnlinkOnClose(false)
		if err := ln.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		_ = again.Close()
	})
	t.Run("leaves a living agent alone", func(t *testing.T) {
		path := serve(t, example())
		if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "another agent answers on "+path+": stop it, or name another path") {
			t.Errorf("%v", err)
		}
		if _, err := agentclient.New(path).Status(t.Context()); err != nil {
			t.Errorf("the living agent lost its socket: %v", err)
		}
	})
	t.Run("removes nothing that is no socket", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "is no socket") {
			t.Errorf("%v", err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	})
}

func TestHealth(t *testing.T) {
	for _, tc := range []struct {
		name, path string
		change     func(n *node)
		code       int
		says       string
	}{
		{"healthy", "/healthz", func(*node) {}, 200, "ok\n"},
		{"ready", "/readyz", func(*node) {}, 200, "ok\n"},
		{"a short stall is not unhealthy", "/healthz", func(n *node) { n.status.Workers[1].LastBeatAge = 5 }, 200, "ok\n"},
		{"a hung worker is", "/healthz", func(n *node) { n.status.Workers[1].LastBeatAge = 31 }, 503, "[-]workers: worker 1 has not moved for 31 s\n"},
		{"not ready names every check", "/readyz", func(n *node) { n.unready = []string{"wan0: no such interface", "worker 0: no heartbeat"} }, 503, "[-]wan0: no such interface\n[-]worker 0: no heartbeat\n"},
		{"not ready is healthy", "/healthz", func(n *node) { n.unready = []string{"x"} }, 200, "ok\n"},
		{"metrics", "/metrics", func(*node) {}, 200, "metrics here"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := example()
			tc.change(n)
			metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics here") })
			w := httptest.NewRecorder()
			Health(n, metrics).ServeHTTP(w, httptest.NewRequest(http.MethodGet, tc.path, nil))
			if w.Code != tc.code || w.Body.String() != tc.says {
				t.Errorf("%d %q", w.Code, w.Body)
			}
		})
	}
}
