// SPDX-License-Identifier: Apache-2.0

package local

import (
	"fmt"
	"net/http"
	"strings"
)

// hungAfter is the age in seconds of a worker's heartbeat at which only a restart helps. Traffic does not wait for it: the kernel
// passes everything after 10 ms without a heartbeat.
const hungAfter = 30

// Health serves /healthz (restart the agent when it fails), /readyz (it protects traffic) and /metrics.
func Health(source Source, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		status, _ := source.Status(false)
		var failed []string
		for _, worker := range status.Workers {
			if worker.LastBeatAge > hungAfter {
				failed = append(failed, fmt.Sprintf("workers: worker %d has not moved for %.0f s", worker.ID, worker.LastBeatAge))
			}
		}
		verdict(w, failed)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { verdict(w, source.Unready()) })
	mux.Handle("GET /metrics", metrics)
	return mux
}

// verdict answers as the kubelet and people like it: 200 and ok, or 503 and a line for each failed check.
func verdict(w http.ResponseWriter, failed []string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if len(failed) == 0 {
		_, _ = fmt.Fprintln(w, "ok")
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = fmt.Fprintln(w, "[-]"+strings.Join(failed, "\n[-]"))
}
