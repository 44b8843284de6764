// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
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
	for range 600 {
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
		for _, s := range []setting{{}, {onPath: true}, {spare: true}, {immediate: true}, {noDigest: true}} {
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

// hello is a HELLO of a sender that began anew: it knows the flow, and has another nonce.
func (s *stream) hello(nonce uint64) []byte {
	h := wire.Hello{Flow: descriptor(s.key), Schemes: 3, MaxK: 255, MaxM: 4, MaxT: 9000, MTU: rdmaMTU, Nonce: nonce, Extensions: wire.ExtDigest}
	return h.Append(nil)
}

// A HELLO that is taken on the path, in one batch with packets of the flow that it replaces, before and behind it, and with more that come meanwhile: the
// old flow is out of all tables when the batch ends, what was held for it goes on in order, and the new one takes over.
func TestHelloReplacesAFlowWithinABatch(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		for _, lost := range []int{0, 1} { // the flow holds packets, or none
			w := newWorld(t, sh, setting{onPath: true})
			w.haste = 100 * time.Microsecond
			s := w.connect(1000).requests[east]
			s.protect()
			w.nodes[east].lose = losing{sources: lost, messages: 1000}
			s.send(2)
			w.pass(pathDelay + time.Millisecond)
			old := s.receiver()
			for n := range w.nodes[west].stalled {
				w.nodes[west].stalled[n] = w.net.Now() + 9*time.Millisecond // what comes until then is one batch
			}
			for i := range 300 {
				if i == 120 {
					w.message(netip.AddrPortFrom(s.key.Src, cremPort), s.key.Dst, cremPort, s.hello(7))
				}
				for range 4 {
					s.send(1)
					w.net.Advance(10 * time.Microsecond)
				}
				w.pass(10 * time.Microsecond)
			}
			w.pass(pathDelay)
			w.check()
			if r := s.receiver(); r == nil || r == old || r.nonce != 7 {
				t.Fatalf("%d lost: not replaced: %+v", lost, r)
			}
			w.nodes[east].lose = losing{}
			s.trickle(1500)
			if !s.protected() {
				t.Errorf("%d lost: not protected again: %s", lost, s.sender().describe().Why)
			}
			w.finish()
			if missing := len(s.sent) - len(s.got); missing != lost {
				t.Errorf("%d lost: %d were not delivered", lost, missing)
			}
		}
	})
}

// An agent that ends, in either way and on either side, while packets are under way and held: SIGTERM loses none, SIGKILL what was held, and in a few
// seconds flows are protected as before. The accounts of the world say what came out.
func TestAgentsRestartUnderTraffic(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		for _, s := range []setting{{}, {onPath: true}} {
			for site := range siteNames {
				for _, killed := range []bool{false, true} {
					w := newWorld(t, sh, s)
					q := w.connect(1000)
					for _, r := range q.requests {
						r.protect()
					}
					w.nodes[1-site].lose.sources = 1
					for range 12 {
						q.requests[east].send(2)
						q.requests[west].send(2)
						w.pass(time.Millisecond)
					}
					n := w.nodes[site]
					if n.Program().Stats()[bpf.Held] == 0 {
						t.Fatal("nothing is held: this tests nothing")
					}
					if killed {
						n.kill()
					} else {
						n.stop()
					}
					q.requests[east].trickle(20)
					n.start()
					for range 1200 {
						q.requests[east].trickle(1)
						q.requests[west].trickle(1)
					}
					for _, r := range q.requests {
						if !r.protected() {
							t.Errorf("%+v, %s, killed %v: %v is not protected again: %s", s, siteNames[site], killed, r.key, r.sender().describe().Why)
						}
						before := r.restored
						w.nodes[r.from].lose.sources = 1
						r.trickle(30)
						if r.restored != before+1 {
							t.Errorf("%+v, %s, killed %v: what is lost of %v is not restored", s, siteNames[site], killed, r.key)
						}
						if !killed && r.from != site && len(r.sent) != len(r.got) {
							w.pass(time.Second)
							r.all()
						}
					}
					w.finish()
				}
			}
		}
	})
}

// Section 5.1, rule 3: however long a gateway was away and however many flows wait for it, they are protected within a second once it is back.
func TestSection5_1_ManyFlowsReturnWithTheirGateway(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		w := newWorld(t, sh, setting{})
		var flows []*stream
		for i := range 200 {
			flows = append(flows, w.connect(roce.PSN(1000 * i)).requests[east])
		}
		send := func(d, gap time.Duration) {
			for range int(d / gap) {
				for _, s := range flows {
					s.send(1)
				}
				w.pass(gap)
			}
		}
		protected := func() (n int) {
			for _, s := range flows {
				if s.protected() {
					n++
				}
			}
			return n
		}
		send(time.Second, 50*time.Millisecond)
		if n := protected(); n != len(flows) {
			t.Fatalf("%d of %d flows are protected", n, len(flows))
		}
		w.nodes[west].kill()
		send(30*time.Second, 200*time.Millisecond)
		if n := protected(); n != 0 {
			t.Fatalf("%d flows are protected by nobody", n)
		}
		w.nodes[west].start()
		send(3*time.Second, 20*time.Millisecond) // a sixteenth of 30 s, and a second
		if n := protected(); n != len(flows) {
			t.Errorf("%d of %d flows are protected again", n, len(flows))
		}
	})
}

// Section 4.2, rule 14: a queue pair number is used again, with PSNs anywhere from those before. The flow is protected anew, and what is lost of it is
// restored: none of its packets is taken for a second run of the life before.
func TestSection4_2_QueuePairUsedAgain(t *testing.T) {
	for _, jump := range []int{-8 << 20, -5 << 20, -1 << 20, -300_000, -5000, 20_000, 300_000, 1 << 20, 5 << 20} {
		for _, s := range []setting{{}, {onPath: true}} {
			w := newWorld(t, shape{workers: 1, seed: 1}, s)
			r := w.connect(0x700000).requests[0]
			r.protect()
			r.trickle(300)
			w.pass(2 * time.Second)
			r.next, r.inside = r.next.Add(jump), 0
			r.trickle(150)
			before := r.restored
			for range 20 {
				r.trickle(10)
				w.nodes[r.from].lose.sources = 1
				r.trickle(20)
			}
			w.pass(time.Second)
			if n := r.restored - before; !r.protected() || n != 20 {
				t.Errorf("%+v, %+d: %d of 20 lost packets restored, protected %v", s, jump, n, r.protected())
			}
			w.check()
			w.finish()
		}
	}
}

// While packets are held, their worker rests a 64th of the round trip, between 50 and 250 us, which they wait longer at most.
func TestWorkerRestsWhileItHolds(t *testing.T) {
	w := newWorld(t, shape{workers: 1, seed: 1}, setting{})
	r := w.connect(1000).requests[0]
	r.protect()
	r.trickle(100)
	w.nodes[r.from].lose.sources = 1
	r.send(3)
	w.pass(pathDelay + time.Millisecond)
	k, m := w.nodes[1-r.from].engine.workers[0], r.receiver().machine
	if len(k.holding) != 1 {
		t.Fatal("nothing is held: this tests nothing")
	}
	if want := m.SRTT() / 64; want <= minHolding || want >= maxHolding || k.holdPause != want {
		t.Errorf("rests %v at a round trip of %v", k.holdPause, m.SRTT())
	}
	w.finish()
}

// Every kind of change of the configuration, on one side first and then on both, while packets pass: none is lost, and if the configuration protects the
// flows at all they are protected in the end.
func TestReconfigurationUnderTraffic(t *testing.T) {
	changes := map[string]setting{
		"nothing":          {},
		"no domain":        {none: true},
		"no gateways":      {onPath: true},
		"another gateway":  {spare: true},
		"immediate":        {immediate: true},
		"no digest":        {noDigest: true},
		"IPsec":            {required: true},
		"another port":     {otherPort: true},
		"larger blocks":    {k: 32, m: 3},
		"no ordinary ones": {k: 8, m: 0},
		"short hold":       {hold: 5 * time.Millisecond},
	}
	workers(t, func(t *testing.T, sh shape) {
		for name, s := range changes {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, sh, setting{})
				q := w.connect(1000)
				traffic := func(n int) {
					for range n {
						q.requests[east].send(1)
						q.requests[west].send(1)
						w.pass(time.Millisecond)
					}
				}
				for _, r := range q.requests {
					r.protect()
				}
				for _, to := range []setting{s, {}} {
					w.nodes[east].apply(to)
					traffic(50)
					w.nodes[west].apply(to)
					traffic(2500)
					w.check()
					for _, r := range q.requests {
						if wanted := !to.none && !to.required; r.protected() != wanted {
							t.Errorf("%+v: %v protected: %v (%s)", to, r.key, !wanted, r.sender().describe().Why)
						}
					}
				}
				w.pass(time.Second)
				for _, r := range q.requests {
					r.all()
					if r.restored > 0 {
						t.Errorf("%v: %d packets were restored, and none was lost", r.key, r.restored)
					}
				}
				w.finish()
			})
		}
	})
}

// READ responses are protected as flows of their own, once their requests' acknowledgements have told which queue pair asks.
func TestReadResponsesAreRestored(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		w := newWorld(t, sh, setting{})
		q := w.connect(1000)
		r := q.requests[east]
		r.protect()
		for range 40 {
			r.read(6)
			w.pass(5 * time.Millisecond)
		}
		answers := q.responses[west]
		if !answers.protected() {
			t.Fatalf("responses are not protected: %+v", answers.sender().describe())
		}
		for range 10 {
			w.nodes[west].lose.sources = 1
			r.read(6)
			w.pass(30 * time.Millisecond)
		}
		w.pass(time.Second)
		answers.all()
		if answers.restored < 10 {
			t.Errorf("%d responses restored, of 10 lost", answers.restored)
		}
		w.finish()
	})
}

// Section 5.1, rule 11: a flow without packets ends on both sides, all memory comes back, and its next packet begins anew.
func TestSection5_1_IdleFlowIsForgotten(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		w := newWorld(t, sh, setting{})
		s := w.connect(1000).requests[east]
		for range 2 {
			s.protect()
			s.trickle(20)
			w.pass(31 * time.Second)
			if f := s.sender(); f.machine.State() != csf.Closed || s.receiver() != nil {
				t.Errorf("after 31 s: %v, %+v", f.machine.State(), s.receiver())
			}
		}
		w.finish()
	})
}

// CLOSE of either side ends the flow on the other one, and a new HELLO follows while packets go on.
func TestSection5_1_CloseFromEitherSide(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		for _, by := range []int{east, west} {
			w := newWorld(t, sh, setting{})
			s := w.connect(1000).requests[east]
			s.protect()
			r := s.receiver()
			c := wire.Close{FlowID: r.id, Reason: wire.CloseAdministrative}
			w.nodes[east].lose.sources = 1
			s.send(5)
			w.pass(pathDelay + time.Millisecond)
			w.message(netip.AddrPortFrom(gateways[by], cremPort), gateways[1-by], cremPort, c.Append(nil))
			w.pass(time.Millisecond)
			if by == east && r.machine.State() != crf.Closed || by == west && s.protected() {
				t.Errorf("CLOSE of %s: %v, %v", siteNames[by], r.machine.State(), s.sender().machine.State())
			}
			s.trickle(2500)
			if !s.protected() || s.receiver() == r {
				t.Errorf("CLOSE of %s: not protected again: %s", siteNames[by], s.sender().describe().Why)
			}
			w.finish()
		}
	})
}

// The kernel's table is full: further flows pass unprotected and are counted, and get their turn when there is room.
func TestFlowTableFull(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		sh.maxFlows = 2
		w := newWorld(t, sh, setting{})
		for range 4 {
			w.connect(1000)
		}
		each := func(n int, queues []*queuePair) {
			for range n {
				for _, q := range queues {
					q.requests[east].send(1)
				}
				w.pass(5 * time.Millisecond)
			}
		}
		protected := func() (n int) {
			for _, q := range w.queues {
				if q.requests[east].protected() {
					n++
				}
			}
			return n
		}
		each(100, w.queues)
		var full uint64
		for _, k := range w.nodes[west].engine.workers {
			full += k.drops[dropFlowTable]
		}
		if n := protected(); n != 2 || full == 0 {
			t.Errorf("%d flows are protected by a table of 2, %d refused", n, full)
		}
		var rest []*queuePair
		for _, q := range w.queues {
			if !q.requests[east].protected() {
				rest = append(rest, q)
			}
		}
		for range 40 { // the others are idle
			each(4, rest)
			w.pass(time.Second)
		}
		each(200, rest)
		if n := protected(); n != 2 || !rest[0].requests[east].protected() {
			t.Errorf("%d flows are protected, and those that go on have no turn: %s", n, rest[0].requests[east].sender().describe().Why)
		}
		for _, q := range w.queues {
			q.requests[east].all()
		}
		w.finish()
	})
}

// The pools have nothing left, on one side or both: packets pass, those that are held go on, and protection is back with the memory.
func TestPoolMemoryFull(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		for _, sites := range [][]int{{east}, {west}, {east, west}} {
			w := newWorld(t, sh, setting{})
			s := w.connect(1000).requests[east]
			s.protect()
			limit := func(octets int64) {
				for _, i := range sites {
					for _, k := range w.nodes[i].engine.workers {
						k.pool.SetLimit(octets)
					}
				}
			}
			w.nodes[east].lose.sources = 1
			s.trickle(8)
			limit(0)
			for range 10 {
				w.nodes[east].lose.sources = 1
				s.trickle(8)
			}
			lost := len(s.sent) - len(s.got)
			limit(16 << 20)
			s.trickle(1500)
			before := s.restored
			w.nodes[east].lose.sources = 1
			s.trickle(30)
			if s.restored != before+1 {
				t.Errorf("nothing is restored again: %s", s.sender().describe().Why)
			}
			w.pass(time.Second)
			if missing := len(s.sent) - len(s.got); missing > lost {
				t.Errorf("%d packets are missing, of %d lost", missing, lost)
			}
			w.finish()
		}
	})
}

// A worker that does not run for a while, on either side: its packets pass, none is lost, and protection goes on after it.
func TestStalledWorker(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		for site := range siteNames {
			for _, stall := range []time.Duration{50 * time.Millisecond, 2 * time.Second} {
				w := newWorld(t, sh, setting{})
				s := w.connect(1000).requests[east]
				s.protect()
				w.nodes[east].lose.sources = 1
				s.trickle(12)
				for i := range w.nodes[site].stalled {
					w.nodes[site].stalled[i] = w.net.Now() + stall
				}
				s.trickle(int(stall/time.Millisecond) + 1500)
				before := s.restored
				w.nodes[east].lose.sources = 1
				s.trickle(30)
				w.pass(time.Second)
				if s.restored != before+1 {
					t.Errorf("%s stalled for %v: nothing is restored: %s", siteNames[site], stall, s.sender().describe().Why)
				}
				if missing := len(s.sent) - len(s.got); missing > 1 {
					t.Errorf("%s stalled for %v: %d packets are missing", siteNames[site], stall, missing)
				}
				w.finish()
			}
		}
	})
}

// Section 5.1, rule 6, and Section 11: a sender that is gone is followed by another gateway of its site, when it has not been heard for a while, and by
// nobody else. The flow goes on all the time.
func TestSection11_AnotherGatewayFollows(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		w := newWorld(t, sh, setting{both: true, k: 8})
		s := w.connect(1000).requests[east]
		s.protect()
		s.trickle(6000) // nothing is lost, so nothing is said
		before := s.receiver()
		w.message(netip.MustParseAddrPort("10.1.0.77:52000"), gateways[west], cremPort, s.hello(7))
		s.trickle(10)
		if s.receiver() != before {
			t.Fatal("an endpoint has taken the flow from its gateway")
		}
		n := w.nodes[east]
		n.kill()
		n.setting.spare = true // the other address first
		n.start()
		s.trickle(20000)
		if !s.protected() || s.receiver().peer.Addr() != spares[east] {
			t.Errorf("protected: %v, sender %v", s.protected(), s.receiver().peer)
		}
		w.finish()
	})
}

// Section 5.1, rule 6: a gateway that knows a flow of old, and sees no packet of it any more, does not answer HELLO. The one that the flow has come to does.
func TestSection5_1_OnlyThePathAnswers(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		w := newWorld(t, sh, setting{})
		s := w.connect(1000).requests[east]
		for _, protected := range []bool{false, true} {
			s.send(1)
			w.pass(pathDelay + time.Millisecond)
			if protected {
				s.protect()
			} else {
				w.nodes[east].lose = losing{messages: 1000}
			}
			w.pass(seenLately)
			before := s.receiver()
			w.message(netip.AddrPortFrom(gateways[east], cremPort), gateways[west], cremPort, s.hello(7))
			w.pass(time.Millisecond)
			if s.receiver() != before {
				t.Errorf("answered, known: %v", protected)
			}
			w.nodes[east].lose = losing{}
		}
		w.finish()
	})
}

// A flow that leaves by another uplink stays protected when the first one goes.
func TestFlowMovesToAnotherUplink(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		w := newWorld(t, sh, setting{})
		s := w.connect(1000).requests[east]
		s.protect()
		n := w.nodes[east]
		n.Route(1)
		s.trickle(20)
		n.links = []int{1}
		n.apply(n.setting)
		s.trickle(1500)
		if !s.protected() {
			t.Errorf("not protected: %s", s.sender().describe().Why)
		}
		w.finish()
	})
}

// A flow that has ended is not forgotten while the kernel holds for it: what is in the ring would be passed by what comes after.
func TestEndedFlowIsHandedBackFirst(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		w := newWorld(t, sh, setting{})
		s := w.connect(1000).requests[east]
		s.protect()
		r := s.receiver()
		word := r.w.e.holder.Word(r.index)
		r.w.endRecv(r, wire.CloseIdle)
		before := word.Load()
		word.Store(before | uint64(packet.HoldBit))
		if r.w.sweep(); r.index < 0 || r.w.receiving[r.id] != r {
			t.Error("forgotten while the kernel holds")
		}
		word.Store(before)
		if r.w.sweep(); r.index >= 0 || r.w.receiving[r.id] != nil {
			t.Error("kept although it was handed back")
		}
	})
}

// Section 5.3, rule 3: a new flow begins with what flows to the same site have seen, on whatever worker they are.
func TestSection5_3_NewFlowStartsFromWhatAllWorkersKnow(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		w := newWorld(t, sh, setting{})
		first := w.connect(1000).requests[east]
		first.protect()
		w.nodes[east].lose.rate = 0.05
		for range 2000 {
			first.send(8)
			w.pass(time.Millisecond)
		}
		w.nodes[east].lose.rate = 0
		known := first.sender().machine.Explain()
		for range sh.workers { // one of them is on another worker
			s := w.connect(1000).requests[east]
			s.protect()
			e := s.sender().machine.Explain()
			if !e.OfSite || e.Seen < known.Seen || e.Loss < known.Loss/2 {
				t.Errorf("worker %d: a new flow begins with %+v, known is %+v", workerOf(s.key.Src, s.key.Dst, sh.workers), e, known)
			}
		}
		w.finish()
	})
}
