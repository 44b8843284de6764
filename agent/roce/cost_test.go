// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"fmt"
	"testing"
)

// What a packet of 1024 or 4096 octets of data costs, without allocation.

type costPacket struct {
	name string
	Packet
}

func costPackets(t testing.TB) (packets []costPacket) {
	for i, v := range []string{"IPv4", "IPv6"} {
		for _, n := range []int{1024, 4096} {
			s := newSpec(hosts[i][0], hosts[i][1])
			s.op, s.body = WriteMiddle, make([]byte, n)
			packets = append(packets, costPacket{fmt.Sprintf("%s/%d", v, n), s.parse(t)})
		}
	}
	return packets
}

func TestNoAllocation(t *testing.T) {
	for _, p := range costPackets(t) {
		frame := append(append([]byte(nil), p.Head()...), p.P()...)
		var template Template
		template.Set(p.Head())
		dst := make([]byte, 0, MaxHead)
		allocs := testing.AllocsPerRun(100, func() {
			q, _ := Parse(frame)
			space, _ := q.Source()
			if !CheckICRC(&q) || !RoCEv2.ValidSource(q.P(), space, q.PSN(), q.QPN(), q.PKey(), 0) || q.Key().Hosts() == q.Key().Reverse() {
				t.Error("packet refused")
			}
			if _, ok := template.SolveID(q.P()); !ok {
				t.Error("Identification not found")
			}
			BuildHead(dst, q.Head(), len(q.P()), 1, 2, true, q.P())
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations", p.name, allocs)
		}
	}
}

var sink uint32

func BenchmarkParse(b *testing.B) {
	for _, p := range costPackets(b) {
		frame := append(append([]byte(nil), p.Head()...), p.P()...)
		b.Run(p.name, func(b *testing.B) {
			for b.Loop() {
				q, reason := Parse(frame)
				sink += uint32(reason) + uint32(q.PSN())
			}
		})
	}
}

func BenchmarkKey(b *testing.B) {
	for _, p := range costPackets(b) {
		b.Run(p.name, func(b *testing.B) {
			for b.Loop() {
				k := p.Key()
				sink += uint32(k.QPN)
			}
		})
	}
}

func BenchmarkICRC(b *testing.B) {
	for _, p := range costPackets(b) {
		b.Run(p.name, func(b *testing.B) {
			b.SetBytes(int64(len(p.P())))
			for b.Loop() {
				sink += ICRC(p.Head(), p.P())
			}
		})
	}
}

func BenchmarkSolveID(b *testing.B) {
	for _, p := range costPackets(b) {
		var template Template
		template.Set(p.Head())
		b.Run(p.name, func(b *testing.B) {
			b.SetBytes(int64(len(p.P())))
			for b.Loop() {
				id, _ := template.SolveID(p.P())
				sink += uint32(id)
			}
		})
	}
}

func BenchmarkBuildHead(b *testing.B) {
	dst := make([]byte, 0, MaxHead)
	for _, p := range costPackets(b) {
		b.Run(p.name, func(b *testing.B) {
			for b.Loop() {
				sink += uint32(len(BuildHead(dst, p.Head(), len(p.P()), 1, 0, false, nil)))
			}
		})
	}
}
