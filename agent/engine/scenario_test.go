// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"crem.dev/crem/agent/csf"
)

// workers runs a test with one worker and with two.
func workers(t *testing.T, f func(t *testing.T, sh shape)) {
	t.Helper()
	for n, name := range map[int]string{1: "one worker", 2: "two workers"} {
		t.Run(name, func(t *testing.T) { f(t, shape{workers: n, seed: 1}) })
	}
}

// sender is the flow of a stream at the node that sends it, nil if there is none; receiver at the one that receives it.
func (s *stream) sender() *sendFlow {
	for _, k := range s.q.w.nodes[s.from].engine.workers {
		if f := k.sending[s.key]; f != nil {
			return f
		}
	}
	return nil
}

func (s *stream) receiver() *recvFlow {
	for _, k := range s.q.w.nodes[1-s.from].engine.workers {
		if r := k.recvByKey[s.key]; r != nil {
			return r
		}
	}
	return nil
}

func (s *stream) protected() bool {
	f := s.sender()
	return f != nil && f.machine != nil && f.machine.State() == csf.Protecting
}

// protect sends until the stream is protected.
func (s *stream) protect() {
	w := s.q.w
	w.t.Helper()
	for range 100 {
		if s.protected() {
			return
		}
		s.send(1)
		w.pass(pathDelay)
	}
	w.t.Fatalf("%v is not protected: %+v", s.key, s.sender().describe())
}

// trickle sends packets, a millisecond apart.
func (s *stream) trickle(n int) {
	for range n {
		s.send(1)
		s.q.w.pass(time.Millisecond)
	}
}

// all wants every packet so far to be delivered, each at least once.
func (s *stream) all() {
	s.q.w.t.Helper()
	for psn := range s.sent {
		if s.got[psn] == 0 {
			s.q.w.t.Errorf("PSN %v of %v was not delivered", psn, s.key)
		}
	}
}

// Sections 5.1, 5.2 and 6: a flow is protected by itself, and what the path loses from then on is restored, octet for octet and in order.
func TestSection6_LostPacketsComeAgain(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		for _, s := range []setting{{}, {onPath: true}, {immediate: true}, {noDigest: true}} {
			w := newWorld(t, sh, s)
			q := w.connect(0xfffff0)
			for _, r := range q.requests {
				r.protect()
				for range 20 {
					r.trickle(5)
					w.nodes[r.from].lose.sources = 1
					r.trickle(6)
				}
				w.pass(time.Second)
				r.all()
				if r.restored < 20 {
					t.Errorf("%+v: %d packets restored", s, r.restored)
				}
			}
			w.check()
			w.finish()
		}
	})
}
