// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// crowd is flows of one worker that send a packet each every step. Their messages are noted by flow.
type crowd struct {
	*world
	flows  []*Flow
	next   roce.PSN
	series []seriesStart
	nonces map[uint64]bool
}

type seriesStart struct {
	flow int
	at   time.Duration
}

func newCrowd(t *testing.T, n int, peers ...netip.AddrPort) *crowd {
	c := &crowd{world: newWorld(t, defaults()), next: 1, nonces: map[uint64]bool{}}
	for range n {
		c.flows = append(c.flows, c.newFlow(wire.KindRoCEv2, peers...))
	}
	return c
}

// run lets time pass; every flow but those that rest sends every step.
func (c *crowd) run(d, step time.Duration, rest ...int) {
	c.t.Helper()
	for end := c.now + d; c.now < end; c.now += step {
		for i, f := range c.flows {
			c.f = f
			f.Poll(c.now, &c.acts)
			c.take()
			if !contains(rest, i) {
				c.write(c.next)
			}
			for _, m := range c.log {
				if m.typ == wire.TypeHello && !c.nonces[m.hello.Nonce] {
					c.nonces[m.hello.Nonce] = true
					c.series = append(c.series, seriesStart{i, c.now})
				}
			}
			c.log = c.log[:0]
		}
		c.next = c.next.Add(1)
	}
}

func contains(list []int, x int) bool {
	for _, y := range list {
		if x == y {
			return true
		}
	}
	return false
}

// answer lets the gateway answer the flow's series.
func (c *crowd) answer(flow int, from netip.AddrPort) {
	c.t.Helper()
	c.f = c.flows[flow]
	c.answerHello(from, nil)
	if c.f.id == 0 {
		c.t.Fatal("the answer did not bind the flow")
	}
	c.log = c.log[:0]
}

// Of many flows that a silent gateway does not answer, one at a time asks: soon at first, then at a sixteenth of the silence, at most 4 s.
func TestSection5_1_OneFlowAsksASilentGateway(t *testing.T) {
	const n = 20
	c := newCrowd(t, n, gateway)
	c.run(4*time.Second, 5*time.Millisecond)
	c.series = nil
	c.run(time.Second, 5*time.Millisecond) // between two turns of their own
	if got := len(c.series); got < 3 || got > 4 {
		t.Errorf("%d series out of turn in a second", got)
	}
	c.run(10*time.Minute, 100*time.Millisecond)
	c.series = nil
	c.run(10*time.Minute, 100*time.Millisecond)
	// In its own turn each flow asks every minute; out of turn one does every 4 s.
	if got, own, ahead := len(c.series), n*10, int(10*time.Minute/scoutSlowest); got < own*8/10+ahead*8/10 || got > own*11/10+ahead*11/10 {
		t.Errorf("%d series in 10 minutes, %d flows in their turns make %d, and %d come out of turn", got, n, own, ahead)
	}
}

// When a gateway that was silent answers one flow, the others ask at once, however long their pauses are.
func TestSection5_1_AGatewayThatReturnsIsAskedByAll(t *testing.T) {
	const n = 20
	c := newCrowd(t, n, gateway)
	c.run(5*time.Minute, 100*time.Millisecond)
	c.series = nil
	c.run(10*time.Second, 10*time.Millisecond)
	if len(c.series) == 0 || len(c.series) > n {
		t.Fatalf("%d series in 10 s", len(c.series))
	}
	scout := c.series[len(c.series)-1].flow
	c.answer(scout, gateway)
	back := c.now
	c.series = nil
	c.run(500*time.Millisecond, time.Millisecond)
	asked := map[int]bool{scout: true}
	for _, s := range c.series {
		if asked[s.flow] {
			t.Errorf("flow %d asks again", s.flow)
		}
		asked[s.flow] = true
		if late := s.at - back; late > 2*scoutGap {
			t.Errorf("flow %d asks %v after the gateway is back", s.flow, late)
		}
	}
	if len(asked) != n {
		t.Errorf("%d of %d flows asked", len(asked), n)
	}
	// Those that it does not answer do not pass it: they wait in their turns, and nothing comes out of turn while it is the peer of a flow.
	c.series = nil
	c.run(30*time.Second, 10*time.Millisecond, scout)
	for i := range c.flows {
		var own []time.Duration
		for _, s := range c.series {
			if s.flow == i {
				own = append(own, s.at-back)
			}
		}
		if i != scout && (len(own) < 4 || len(own) > 8) {
			t.Errorf("flow %d asks at %v", i, own)
		}
	}
}

// A pause for another reason than silence is kept: here for impairment.
func TestSection10_ImpairedFlowsDoNotAskOutOfTurn(t *testing.T) {
	c := newCrowd(t, 2, gateway)
	c.run(time.Second, 10*time.Millisecond, 1)
	c.answer(0, gateway)
	f := c.flows[0]
	f.unbind(WhyImpaired)
	f.helloAfter = c.now + impairedPause
	c.series = nil
	c.run(40*time.Second, 10*time.Millisecond)
	for _, s := range c.series {
		if s.flow == 0 {
			t.Fatalf("it asks %v after it was closed", s.at)
		}
	}
}

// A gateway that one flow passes and another does not is no silent one.
func TestSection5_1_AGatewayOfOtherFlowsIsNotSilent(t *testing.T) {
	c := newCrowd(t, 2, gateway, gateway2)
	c.run(100*time.Millisecond, 10*time.Millisecond)
	c.answer(0, gateway)
	c.series = nil
	c.run(20*time.Second, 10*time.Millisecond, 0)
	q, q2 := c.env.presences.at(gateway.Addr()), c.env.presences.at(gateway2.Addr())
	if q.silent || q.bound != 1 || !q2.silent || q2.bound != 0 {
		t.Errorf("%+v %+v", q, q2)
	}
	c.flows[0].Close(c.now, wire.CloseAdministrative, &c.acts)
	c.take()
	if q.bound != 0 {
		t.Errorf("%d flows after its only one was closed", q.bound)
	}
	c.run(10*time.Second, 10*time.Millisecond, 0)
	if !q.silent {
		t.Error("it answers nobody any more")
	}
}

// A flow that cannot be protected does not take the turn of one that can.
func TestSection5_1_WhoCannotAskIsNotSentAhead(t *testing.T) {
	c := newCrowd(t, 2, gateway)
	c.run(10*time.Minute, 100*time.Millisecond)
	small := *c.p
	small.PathMTU = 576
	c.flows[0].SetParams(c.now, &small, &c.acts)
	for _, f := range c.flows {
		f.helloAfter, f.served = roce.Never, gateway.Addr()
	}
	c.series = nil
	c.run(time.Minute, 10*time.Millisecond)
	if got, want := len(c.series), int(time.Minute/scoutSlowest); got < want-2 || got > want {
		t.Errorf("%d series in a minute, want %d", got, want)
	}
	for _, s := range c.series {
		if s.flow == 0 {
			t.Fatal("it asks and cannot be protected")
		}
	}
}

// What is remembered is bounded, and a gateway that is a flow's peer is never forgotten.
func TestPresencesAreBounded(t *testing.T) {
	var p presences
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	p.at(at(0)).bound = 1
	for i := range 3 * maxPresences {
		p.at(at(i)).since = time.Duration(i)
	}
	if len(p.of) != maxPresences || p.of[at(0)] == nil || p.of[at(0)].bound != 1 || p.of[at(3*maxPresences-1)] == nil {
		t.Errorf("%d are remembered", len(p.of))
	}
	for _, q := range p.of {
		q.bound = 1
	}
	if p.at(at(-1)) != nil || len(p.of) != maxPresences {
		t.Error("one was forgotten that flows have as their peer")
	}
	// Flows do without.
	w := newWorld(t, defaults())
	w.env.presences = p
	w.write(1)
	w.wait(time.Second)
	w.write(2)
	w.answerHello(gateway, nil)
	w.f.Close(w.now, wire.CloseAdministrative, &w.acts)
	w.take()
}

// A look costs a flow that waits nothing that grows: no memory is taken.
func TestWaitingForAGatewayTakesNoMemory(t *testing.T) {
	c := newCrowd(t, 1, gateway)
	c.run(10*time.Second, 10*time.Millisecond)
	c.f, c.f.hello.due = c.flows[0], roce.Never
	pkt := packet(t, roce.WriteMiddle, c.next, 1024, 0)
	c.env.presences.of[gateway.Addr()].scout = roce.Never
	c.f.helloAfter = roce.Never
	if n := testing.AllocsPerRun(100, func() {
		c.now += scoutGap
		c.f.HandleSource(c.now, pkt, &c.acts)
	}); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

// A series whose last HELLO left before the gateway was back says nothing of the time since: its flow asks again too.
func TestSection5_1_ASeriesThatIsUnderWayIsRepeated(t *testing.T) {
	c := newCrowd(t, 2, gateway)
	c.run(5*time.Minute, 50*time.Millisecond)
	waits, asks := c.flows[0], c.flows[1]
	waits.helloAfter, asks.helloAfter = c.now, roce.Never
	c.run(10*time.Millisecond, time.Millisecond, 1)
	c.run(150*time.Millisecond, time.Millisecond, 1)
	if waits.hello.attempts != helloAttempts || waits.hello.due == roce.Never {
		t.Fatalf("%+v", waits.hello)
	}
	c.env.presences.of[gateway.Addr()].scout = c.now
	c.run(2*time.Millisecond, time.Millisecond)
	c.answer(1, gateway)
	c.series = nil
	c.run(200*time.Millisecond, time.Millisecond)
	if len(c.series) != 1 || c.series[0].flow != 0 {
		t.Errorf("%+v", c.series)
	}
	// Once: after that it knows that it does not pass the gateway.
	c.run(900*time.Millisecond, time.Millisecond)
	if len(c.series) != 1 {
		t.Errorf("%+v", c.series)
	}
}

// A gateway is silent when flows that send lost it, though others that rest still have it as their peer.
func TestSection5_1_FlowsThatRestDoNotHideSilence(t *testing.T) {
	const n = 20
	c := newCrowd(t, n, gateway)
	c.run(20*time.Millisecond, 10*time.Millisecond)
	for i := range n {
		c.answer(i, gateway)
		c.paramAck(c.f.proposal.config.id, wire.StatusAccepted)
	}
	c.run(20*time.Second, 10*time.Millisecond, 0)
	if c.flows[0].id == 0 || c.flows[1].id != 0 {
		t.Fatal("the flow that rests lost its peer, or the others did not")
	}
	c.series = nil
	c.run(5*time.Second, 10*time.Millisecond, 0)
	if len(c.series) == 0 {
		t.Fatal("nobody asks")
	}
	scout := c.series[len(c.series)-1].flow
	c.answer(scout, gateway)
	c.series = nil
	c.run(200*time.Millisecond, 10*time.Millisecond, 0)
	if len(c.series) != n-2 {
		t.Errorf("%d series after the gateway is back, want %d", len(c.series), n-2)
	}
}

// Whatever order things come in, a gateway has as many flows as have it as their peer.
func TestPresencesInAnyOrder(t *testing.T) {
	gateways := []netip.AddrPort{gateway, gateway2, netip.MustParseAddrPort("198.51.100.3:52000")}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 4 {
		c := newCrowd(t, 8, gateways...)
		for range 500 {
			i, g := rng.IntN(len(c.flows)), gateways[rng.IntN(len(gateways))]
			f := c.flows[i]
			c.f = f
			switch rng.IntN(12) {
			case 0:
				c.answerHello(g, nil)
			case 1:
				f.HandleClose(c.now, f.peer, &wire.Close{FlowID: f.id, Reason: wire.CloseReason(rng.IntN(7))}, &c.acts)
			case 2:
				f.SetPeers(c.now, gateways[:1+rng.IntN(3)], &c.acts)
			case 3:
				q := *c.p
				q.Digest = rng.IntN(2) == 0
				f.SetParams(c.now, &q, &c.acts)
			case 4:
				f.HandleLossReport(c.now, f.peer, &wire.LossReport{FlowID: f.id, Interval: 20_000, Expected: 100, Received: 100}, &c.acts)
			case 5:
				if id := f.id; id != 0 && f.proposal.due != roce.Never {
					f.HandleParamAck(c.now, f.peer, &wire.ParamAck{FlowID: id, ConfigID: f.proposal.config.id}, &c.acts)
				}
			case 6:
				f.Close(c.now, wire.CloseIdle, &c.acts)
			case 7:
				c.run(time.Duration(rng.IntN(3000))*time.Millisecond, 50*time.Millisecond, i)
			default:
				c.run(time.Duration(rng.IntN(200))*time.Millisecond, 10*time.Millisecond)
			}
			c.f = f
			c.take()
			bound := map[*presence]int{}
			for _, f := range c.flows {
				if (f.with != nil) != (f.id != 0) || f.with != nil && f.with != c.env.presences.of[f.peer.Addr()] {
					t.Fatalf("%v: %+v", f.peer, f.with)
				}
				bound[f.with]++
			}
			for a, q := range c.env.presences.of {
				if q.bound != bound[q] || q.silent && q.returned || q.silent && q.bound > 0 && !q.lost {
					t.Fatalf("%v has %d flows: %+v", a, bound[q], q)
				}
			}
		}
	}
}

// Flows that do not pass a silent gateway do not keep one that it served before from finding out that it is back, though they send much more.
func TestSection5_1_WhoWasServedIsSentAhead(t *testing.T) {
	c := newCrowd(t, 3, gateway)
	c.run(20*time.Millisecond, 10*time.Millisecond)
	c.answer(2, gateway)
	for i := range 12_000 { // two minutes
		rest := []int{2}
		if i%20 == 0 {
			rest = nil
		}
		c.run(10*time.Millisecond, 10*time.Millisecond, rest...)
	}
	c.flows[2].helloAfter = roce.Never // its own turn is far away
	c.series = nil
	for i := range 6000 {
		rest := []int{2}
		if i%20 == 0 {
			rest = nil
		}
		c.run(10*time.Millisecond, 10*time.Millisecond, rest...)
	}
	turns := 0
	for _, s := range c.series {
		if s.flow == 2 {
			turns++
		}
	}
	if turns < 10 {
		t.Errorf("of %d series in a minute %d are of the flow that was served", len(c.series), turns)
	}
}
