// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"crem.dev/crem/test/lab/trial"
	"crem.dev/crem/test/lab/wan"
	"crem.dev/crem/test/rxe/watch"
)

// seen is what a site's provider sees of it, in packets of both sites and directions.
type seen struct {
	ESP    uint64 `json:"esp"`
	RoCE   uint64 `json:"roce_in_clear"`
	CREM   uint64 `json:"crem_in_clear"`
	Other  uint64 `json:"other"` // neighbour discovery
	Missed uint64 `json:"missed"`
}

// wire counts what goes over both sites' cables.
type wire struct {
	mu   sync.Mutex
	seen seen
	open []*watch.Watcher
}

func (w *world) openWire() (*wire, error) {
	x := &wire{}
	var err error
	x.open, err = w.onCables(x.frame)
	return x, err
}

func (x *wire) frame(f []byte, _ bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch wan.Classify(f, trial.CREMPort) {
	case wan.RoCEData, wan.RoCEOther:
		x.seen.RoCE++
	case wan.CREM:
		x.seen.CREM++
	case wan.Other:
		if isESP(f) {
			x.seen.ESP++
		} else {
			x.seen.Other++
		}
	}
}

func isESP(f []byte) bool {
	if len(f) < 34 {
		return false
	}
	switch binary.BigEndian.Uint16(f[12:]) {
	case unix.ETH_P_IP:
		return f[14+9] == unix.IPPROTO_ESP
	case unix.ETH_P_IPV6:
		return f[14+6] == unix.IPPROTO_ESP
	}
	return false
}

func (x *wire) counts() seen {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seen
}

// close ends the watch; frames that it missed are in counts from then on.
func (x *wire) close() (err error) {
	for _, w := range x.open {
		n, cerr := w.Close()
		x.mu.Lock()
		x.seen.Missed += n
		x.mu.Unlock()
		err = errors.Join(err, cerr)
	}
	x.open = nil
	return err
}
