// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"time"

	"crem.dev/crem/test/lab/bridge"
	"crem.dev/crem/test/lab/topology"
	"crem.dev/crem/test/lab/trial"
	"crem.dev/crem/test/lab/wan"
)

// line is the long way between the gateways: the lab's WAN emulator in this process.
type line struct {
	bridge  *bridge.Bridge
	stop    chan struct{}
	stopped chan struct{}
}

func openLine(n *topology.Namespace) (l *line, err error) {
	l = &line{stop: make(chan struct{}), stopped: make(chan struct{})}
	err = n.Do(func() (err error) {
		l.bridge, err = bridge.Open(bridge.Options{Interfaces: [2]string{topology.WANA, topology.WANB}})
		return err
	})
	if err != nil {
		return nil, err
	}
	// In the namespace's own thread, whose priority is that of a wire and not of a program among others.
	go func() {
		_ = n.Do(func() error { l.bridge.Run(l.stop); return nil })
		close(l.stopped)
	}()
	return l, nil
}

// A guest that encrypts in software is overtaken by a faster line: its one processor is then in interrupts for longer than an agent's worker may be silent.
const (
	sealedRate  = 4_000_000 // bit/s
	sealedQueue = 1 << 20   // octets, more than Soft-RoCE ever has under way
)

// set gives both directions the case's loss, of RoCEv2 and CREM packets alike, and half the round trip. sealed: nobody can tell what packets are, so
// all are lost alike; and the line is slow.
func (l *line) set(loss float64, sealed bool) error {
	s := wan.Settings{Delay: wan.Duration(rtt / 2), Loss: loss, ProtectedOnly: !sealed, CREMPort: trial.CREMPort}
	if sealed {
		s.Rate, s.Queue = sealedRate, sealedQueue
	}
	var err error
	l.do(func() {
		for i := range 2 {
			s.Seed = uint64(i + 1)
			err = errors.Join(err, l.bridge.Line(i).Configure(s))
		}
	})
	return err
}

func (l *line) counters() (c [2]wan.Counters, hostDropped uint64) {
	l.do(func() {
		for i, s := range l.bridge.Stats() {
			c[i] = s.Counters
			hostDropped += s.RingDropped + s.SendDropped + s.Unfinished
		}
	})
	return c, hostDropped
}

func (l *line) do(f func()) { l.bridge.Do(l.stopped, f) }

func (l *line) close() {
	close(l.stop)
	select {
	case <-l.stopped:
	case <-time.After(5 * time.Second):
	}
}
