// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// stream feeds a protected flow at full speed: packets of one size, acknowledgements a round trip later, a report per SRTT.
type stream struct {
	*world
	frame  []byte
	psn    roce.PSN
	gap    time.Duration
	report time.Duration
	rtt    int // packets in a round trip
	sent   uint64
}

func newStream(t testing.TB, p *Params, data int) *stream {
	w := newWorld(t, p)
	w.mtu = data
	w.protect(1)
	s := &stream{world: w, frame: buildFrame(roce.WriteMiddle, 2, data, 0), psn: 2, gap: 20 * time.Microsecond}
	s.rtt = int(testRTT / s.gap)
	s.report = w.now + testRTT
	return s
}

// packet is one step: a packet, and what belongs to it.
func (s *stream) packet() {
	binary.BigEndian.PutUint32(s.frame[42+8:], uint32(s.psn))
	pkt, _ := roce.Parse(s.frame)
	s.f.HandleSource(s.now, &pkt, &s.acts)
	if s.psn%8 == 0 {
		s.f.HandleAck(s.now, s.psn.Add(-s.rtt))
	}
	if s.now >= s.report {
		m := wire.LossReport{FlowID: testID, Interval: uint32(testRTT / time.Microsecond), Expected: 1000, Received: 999}
		m.RepairsReceived = uint32(s.f.stats.Ordinary - s.sent)
		s.sent = s.f.stats.Ordinary
		s.f.HandleLossReport(s.now, gateway, &m, &s.acts)
		s.report += testRTT
	}
	if s.f.NextDeadline() <= s.now {
		s.f.Poll(s.now, &s.acts)
	}
	if s.psn%64 == 0 { // the engine's batch
		s.acts = s.acts[:0]
		s.env.Pool.Reclaim()
	}
	s.psn = s.psn.Add(1)
	s.now += s.gap
}

func steady(m int, digest bool, path int) *Params {
	p := fixed(m)
	p.Spread, p.Digest, p.MaxRepairRatio, p.PathMTU = true, digest, 0.25, path
	return p
}

func TestNoAllocationInSteadyState(t *testing.T) {
	for _, adaptive := range []bool{false, true} {
		p := steady(2, true, 1500)
		if adaptive {
			p.FixedM, p.PeerSite, p.LossModel = -1, "west", Empirical
		}
		s := newStream(t, p, 1024)
		s.env.Node = NewBudget(100 << 20)
		for range 20000 {
			s.packet()
		}
		before := *s.f.Stats()
		if n := testing.AllocsPerRun(20, func() {
			for range 2000 {
				s.packet()
			}
		}); n != 0 {
			t.Errorf("adaptive %v: %v allocations per 2000 packets", adaptive, n)
		}
		after := s.f.Stats()
		if after.Ordinary-before.Ordinary < 1000 || after.BlocksAcked == before.BlocksAcked {
			t.Errorf("%d symbols, %d blocks acknowledged: not the steady state", after.Ordinary-before.Ordinary, after.BlocksAcked-before.BlocksAcked)
		}
	}
}

func BenchmarkPacket(b *testing.B) {
	for _, size := range []struct {
		name       string
		data, path int
	}{{"1.1KB", 1024, 1500}, {"4.2KB", 4096, 4300}} {
		for _, m := range []int{0, 2} {
			for _, digest := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/m=%d/digest=%v", size.name, m, digest), func(b *testing.B) {
					s := newStream(b, steady(m, digest, size.path), size.data)
					for range 20000 {
						s.packet()
					}
					b.SetBytes(int64(len(s.frame)))
					b.ReportAllocs()
					b.ResetTimer()
					for range b.N {
						s.packet()
					}
				})
			}
		}
	}
}
