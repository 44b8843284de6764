// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"crem.dev/crem/test/lab/wan"
)

// Report is the totals of both directions by name.
type Report struct {
	AToB Stats `json:"a_to_b"`
	BToA Stats `json:"b_to_a"`
}

// NewReport names the totals that Run and Stats return.
func NewReport(s [2]Stats) Report { return Report{s[0], s[1]} }

// change is the body of PATCH: settings given under "both" go to both directions, then those of each. What is not named stays.
type change struct {
	Both json.RawMessage `json:"both"`
	AToB json.RawMessage `json:"a_to_b"`
	BToA json.RawMessage `json:"b_to_a"`
}

// Handler serves a running bridge over HTTP:
//
//	GET   /v1/stats     Report
//	GET   /v1/settings  {"a_to_b": wan.Settings, "b_to_a": wan.Settings}
//	PATCH /v1/settings  {"both": {"loss": 0.01}}: changes what is named, in both directions or in none
func (b *Bridge) Handler(stopped <-chan struct{}) http.Handler {
	mux := http.NewServeMux()
	do := func(w http.ResponseWriter, f func() (any, error)) {
		var answer any
		var err error
		if !b.Do(stopped, func() { answer, err = f() }) {
			http.Error(w, "stopped", http.StatusServiceUnavailable)
			return
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}
	mux.HandleFunc("GET /v1/stats", func(w http.ResponseWriter, _ *http.Request) {
		do(w, func() (any, error) { return NewReport(b.Stats()), nil })
	})
	mux.HandleFunc("GET /v1/settings", func(w http.ResponseWriter, _ *http.Request) {
		do(w, func() (any, error) { return b.settings(), nil })
	})
	mux.HandleFunc("PATCH /v1/settings", func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<16))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		do(w, func() (any, error) {
			if err := b.change(text); err != nil {
				return nil, err
			}
			return b.settings(), nil
		})
	})
	return mux
}

func (b *Bridge) settings() map[string]wan.Settings {
	return map[string]wan.Settings{"a_to_b": b.way[0].line.Settings(), "b_to_a": b.way[1].line.Settings()}
}

// Merge changes the settings of both directions as PATCH does; on an error neither is changed.
func Merge(lines *[2]wan.Settings, text []byte) error {
	var c change
	if err := json.Unmarshal(text, &c); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	next := *lines
	for i, own := range []json.RawMessage{c.AToB, c.BToA} {
		for _, part := range []json.RawMessage{c.Both, own} {
			if len(part) == 0 {
				continue
			}
			if err := json.Unmarshal(part, &next[i]); err != nil {
				return fmt.Errorf("settings: %w", err)
			}
		}
		if err := next[i].Validate(); err != nil {
			return fmt.Errorf("settings: %w", err)
		}
	}
	*lines = next
	return nil
}

// change applies a change to both directions if both can be as asked.
func (b *Bridge) change(text []byte) error {
	next := [2]wan.Settings{b.way[0].line.Settings(), b.way[1].line.Settings()}
	if err := Merge(&next, text); err != nil {
		return err
	}
	return errors.Join(b.way[0].line.Configure(next[0]), b.way[1].line.Configure(next[1]))
}
