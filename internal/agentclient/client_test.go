// SPDX-License-Identifier: Apache-2.0

package agentclient

import (
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestErrorsSayWhatToDo: what a person sees when there is no agent, or one of another version.
func TestErrorsSayWhatToDo(t *testing.T) {
	dir := t.TempDir()
	serve := func(name string, h http.Handler) string {
		path := filepath.Join(dir, name)
		ln, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: h}
		go func() { _ = server.Serve(ln) }()
		t.Cleanup(func() { _ = server.Close() })
		return path
	}
	stopped := filepath.Join(dir, "stopped")
	ln, err := net.Listen("unix", stopped)
	if err != nil {
		t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = ln.Close()

	for _, tc := range []struct{ name, socket, says string }{
		{"no socket", filepath.Join(dir, "none"), "is crem-agent running on this node? Name its socket with --socket"},
		{"stopped agent", stopped, "it has stopped; start it with crem-agent run"},
		{"another version", serve("other", http.NotFoundHandler()), "the agent answered 404 Not Found: is it of the same version"},
		{"no JSON", serve("text", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })), "the agent's answer can not be read"},
		{"its own words", serve("words", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"message":"wait a second"}`))
		})), "wait a second"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := New(tc.socket).Status(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v\nwant %s", err, tc.says)
			}
		})
	}
}
