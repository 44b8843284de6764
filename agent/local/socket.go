// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"crem.dev/crem/internal/agentapi"
)

// Source tells the status of the node.
type Source interface {
	Status(withFlows bool) (agentapi.Status, []agentapi.Flow)
	// Unready names every check that keeps the node from being ready, none when it is.
	Unready() []string
}

// Handler serves the types of agentapi at its paths.
func Handler(source Source) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+agentapi.PathStatus, func(w http.ResponseWriter, _ *http.Request) {
		status, _ := source.Status(false)
		answer(w, http.StatusOK, status)
	})
	mux.HandleFunc("GET "+agentapi.PathFlows, func(w http.ResponseWriter, _ *http.Request) {
		_, flows := source.Status(true)
		if flows == nil {
			flows = []agentapi.Flow{}
		}
		answer(w, http.StatusOK, flows)
	})
	mux.HandleFunc("GET "+agentapi.PathFlows+"/{id...}", func(w http.ResponseWriter, r *http.Request) {
		_, flows := source.Status(true)
		for i := range flows {
			if flows[i].ID == r.PathValue("id") {
				answer(w, http.StatusOK, flows[i])
				return
			}
		}
		answer(w, http.StatusNotFound, agentapi.Error{Message: fmt.Sprintf("there is no flow %s: it ended, or was never seen here; GET %s lists those that are", r.PathValue("id"), agentapi.PathFlows)})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusNotFound, agentapi.Error{Message: fmt.Sprintf("%s %s is not served here: GET %s or %s", r.Method, r.URL.Path, agentapi.PathStatus, agentapi.PathFlows)})
	})
	return mux
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the reader is gone
}

// Listen opens the Unix socket, readable by its owner only: flows name the addresses of endpoints. The socket of an agent that is
// gone is replaced, that of one that answers is left alone.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("make the folder of socket %s: %w", path, err)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return nil, fmt.Errorf("%s exists and is no socket: remove it, or name another path with --socket", path)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("another agent answers on %s: stop it, or name another path with --socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("replace the socket of an earlier agent: %w", err)
	}
	// The socket must not be open to others between its making and a change of its mode.
	mask := unix.Umask(0o177)
	ln, err := net.Listen("unix", path)
	unix.Umask(mask)
	if err != nil {
		return nil, fmt.Errorf("listen on socket %s: %w", path, err)
	}
	return ln, nil
}

// Serve answers requests until ctx ends; it then returns nil.
func Serve(ctx context.Context, ln net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 14}
	stop := context.AfterFunc(ctx, func() {
		// Readers get their answer, the stop does not wait long for them.
		grace, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close()
		}
	})
	defer stop()
	if err := server.Serve(ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	}
	return nil
}
