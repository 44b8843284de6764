// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// healthServer answers /healthz (the program runs) and /readyz (it can do its work, or why not). It is there before the manager is, as an
// operator that waits for its custom resource definitions is alive but not ready.
type healthServer struct {
	server *http.Server
	why    atomic.Pointer[string] // why not ready, empty when it is
}

// serveHealth serves at addr, nothing if that is empty.
func serveHealth(addr string) (*healthServer, error) {
	h := &healthServer{}
	h.set("starting")
	if addr == "" {
		return h, nil
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--health-addr %s: %w", addr, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", h.ready)
	h.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := h.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			h.set("the health server stopped: " + err.Error())
		}
	}()
	return h, nil
}

func (h *healthServer) ready(w http.ResponseWriter, _ *http.Request) {
	if why := *h.why.Load(); why != "" {
		http.Error(w, "not ready: "+why, http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// set says why the operator is not ready; empty: it is.
func (h *healthServer) set(why string) { h.why.Store(&why) }

func (h *healthServer) close() {
	if h.server != nil {
		_ = h.server.Close()
	}
}
