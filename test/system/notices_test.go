// SPDX-License-Identifier: Apache-2.0

package system

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/test/lab/topology"
	"crem.dev/crem/test/lab/wan"
)

// overRate counts the packets that an agent sent into its tunnel over the rate that congestion left them.
func (g *gateway) overRate() uint64 {
	g.w.t.Helper()
	c := g.status().Counters
	return c["tunnel_over_rate"] + c["tunnel_over_rate_not_ect"]
}

// TestWANECN_FalseCNPsChangeNothing: CNPs from outside of the domain, from an endpoint of it, too old, of the future, malformed, for another flow, and
// repeated, at a live agent with a protected flow in a tunnel: each is counted, none slows the flow. A true one does, and when that is over the same
// octets do not.
func TestWANECN_FalseCNPsChangeNothing(t *testing.T) {
	w := newWorld(t, options{path: wan.Settings{Delay: wan.Duration(5 * time.Millisecond), Seed: 3}, profile: proactive, domain: inTunnels})
	w.discard(w.lab.HostB)
	w.awaitTunnels()
	s := w.stream(streamOptions{rate: 2000, data: 1000})
	w.awaitProtecting(1)
	before := w.a.state().flows

	a, west := w.intrude(w.a, topology.WANA), topology.GwB4
	cnp := func(qpn uint32, shift time.Duration) []byte {
		now := uint64(time.Now().UnixMicro())
		x := ecn.CNP{
			Level: ecn.LevelSevere, Flow: ecn.Flow{Src: topology.HostA4, Dst: topology.HostB4, Label: qpn}, Node: 0xbad,
			Sequence: now, Time: now + uint64(shift.Microseconds()),
		}
		return x.Append(nil)
	}
	malformed := cnp(streamQPN, 0)
	malformed[8] = byte(ecn.LevelSevere) + 1
	other := cnp(streamQPN+1, 0)
	for _, x := range []struct {
		name, counter string
		from          netip.Addr
		message       []byte
	}{
		{"from outside", "kernel_boundary_source", netip.MustParseAddr("203.0.113.66"), cnp(streamQPN, 0)},
		{"of an endpoint", "cnp_" + ecn.DropForeign.String(), netip.MustParseAddr("10.2.0.77"), cnp(streamQPN, 0)},
		{"too old", "cnp_" + ecn.DropOld.String(), west, cnp(streamQPN, -10*time.Second)},
		{"of the future", "cnp_" + ecn.DropFuture.String(), west, cnp(streamQPN, 10*time.Second)},
		{"malformed", "message_malformed", west, malformed},
		{"for another flow", "cnp_received_severe", west, other},
		{"repeated", "cnp_" + ecn.DropReplayed.String(), west, other},
	} {
		n := w.a.counted(x.counter)
		a.say(x.from, topology.GwA4, x.message)
		w.eventually("a CNP "+x.name+" is counted", func() bool { return w.a.counted(x.counter) > n })
	}
	s.moves(2000)
	if n := w.a.overRate(); n != 0 {
		t.Errorf("%d packets were over a rate that nobody may have set", n)
	}

	var genuine [][]byte
	w.eventually("a true CNP slows the flow", func() bool {
		genuine = append(genuine, cnp(streamQPN, 0))
		a.say(west, topology.GwA4, genuine[len(genuine)-1])
		return w.a.overRate() > 0
	})
	over := uint64(0)
	w.eventually("the flow has its rate again", func() bool {
		was := over
		s.moves(2000)
		over = w.a.overRate()
		return over == was
	})
	replayed := w.a.counted("cnp_" + ecn.DropReplayed.String())
	for _, m := range genuine {
		a.say(west, topology.GwA4, m)
	}
	w.eventually("the repeated ones are counted", func() bool {
		c := w.a.counted("cnp_"+ecn.DropReplayed.String()) + w.a.counted("cnp_"+ecn.DropOld.String())
		return c >= replayed+uint64(len(genuine))
	})
	s.moves(2000)
	if n := w.a.overRate(); n != over {
		t.Errorf("%d packets over a rate after a CNP that was repeated", n-over)
	}
	if now := w.a.state().flows; !maps.Equal(now, before) {
		t.Errorf("flows %v, %v before", now, before)
	}
	if sent, got := s.end(); got.distinct != sent {
		t.Errorf("%d packets lost", sent-got.distinct)
	}
}

// counted is a counter or a reason of drops of the agent.
func (g *gateway) counted(name string) uint64 {
	g.w.t.Helper()
	st := g.status()
	return st.Counters[name] + st.Drops[name]
}
