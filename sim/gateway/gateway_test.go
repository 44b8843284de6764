// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/packet/fake"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/sim/endpoint"
)

// Frames are RoCEv2 packets that the agent takes: parsed, with the right invariant CRC, valid as sources; and both gateways make the same.
func TestFramesAreReal(t *testing.T) {
	for _, data := range []int{64, 960, 964, 1024, 4096} {
		write := endpoint.Write
		if data == 964 {
			write = endpoint.Send
		}
		near, far := newFramer(data, write), newFramer(data, write)
		for i, c := range []struct {
			first, last, ack bool
			data             int
		}{{true, false, false, data}, {false, false, true, data}, {false, true, true, data - 3}, {true, true, true, 1}, {false, false, false, data}} {
			p := Packet{Packet: endpoint.Packet{Seq: uint64(1000 + i), First: c.first, Last: c.last, AckReq: c.ack, Data: int32(c.data)}}
			frame := bytes.Clone(near.build(&p, c.data, true, tos))
			pkt, reason := roce.Parse(frame)
			if reason != roce.OK || !roce.CheckICRC(&pkt) || len(pkt.Data()) != c.data {
				t.Fatalf("frame %d of %d octets: %v, CRC %v", i, c.data, reason, roce.CheckICRC(&pkt))
			}
			op := pkt.Opcode()
			if _, has := pkt.DMALength(); has != (c.first && write == endpoint.Write) {
				t.Errorf("frame %d: %v, RETH %v", i, op, has)
			}
			if op.Starts() != c.first || op.Ends() != c.last || pkt.AckReq() != c.ack || pkt.PSN() != psnOf(p.Seq) || seqOf(pkt.PSN(), 1003) != p.Seq {
				t.Errorf("frame %d: %v, PSN %v, AckReq %v", i, op, pkt.PSN(), pkt.AckReq())
			}
			if !roce.RoCEv2.ValidSource(pkt.P(), roce.Request, pkt.PSN(), queuePair, partition, 0) {
				t.Errorf("frame %d is no valid source", i)
			}
			if again := far.build(&p, c.data, false, tos); !bytes.Equal(again, frame) {
				t.Errorf("frame %d: the other gateway makes\n%x, not\n%x", i, again, frame)
			}
			marked, _ := roce.Parse(far.build(&p, c.data, false, ce))
			if marked.ECN() != 3 || !roce.CheckICRC(&marked) {
				t.Errorf("frame %d with CE: ECN %d", i, marked.ECN())
			}
		}
	}
}

// Numbers survive the wrap of PSNs, however far a packet is behind or ahead.
func TestNumbersAndPSNs(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100_000 {
		reference := rng.Uint64N(1<<40) + 1<<24
		seq := uint64(int64(reference) + rng.Int64N(1<<23) - 1<<22)
		if got := seqOf(psnOf(seq), reference); got != seq {
			t.Fatalf("packet %d seen from %d is %d", seq, reference, got)
		}
	}
}

// The hold program of a simulation judges as the model of the kernel's program does, which is the oracle of the real one's tests.
func TestHoldIsThatOfTheKernel(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	for run := range 50 {
		immediate := run%10 == 9
		mode := packet.InOrder
		if immediate {
			mode = packet.Immediate
		}
		program := fake.NewProgram(1, 1<<20, func() time.Duration { return 0 })
		index, err := program.RegisterFlow(packet.FlowKey{Src: source, Dst: destination, QPN: queuePair}, 0, 1024, mode)
		if err != nil {
			t.Fatal(err)
		}
		var h hold
		h.register(immediate)
		f := newFramer(64, endpoint.Write)
		next, held := uint64(500), uint64(0)
		for step := range 2000 {
			switch rng.IntN(12) {
			case 0: // a gap
				next += rng.Uint64N(5)
			case 1: // the sender goes back
				next -= rng.Uint64N(min(next, 40))
			case 2: // the flow is handed back, perhaps with a count that is too old
				count, to := held-rng.Uint64N(2)*min(held, 1), psnOf(next)
				program.HandBack(index, count, uint32(to), false)
				h.handBack(count, to)
			case 3: // a sender that went back
				word := program.Word(index)
				if old := packet.Word(word.Load()); !old.Hold() && !old.Learn() {
					word.Store(uint64(old.InOrderAt(uint32(psnOf(next)))))
				}
				h.expect(psnOf(next))
			default:
				p := Packet{Packet: endpoint.Packet{Seq: next, First: true, Last: true}}
				want := program.Ingress(f.build(&p, 64, true, tos), fake.Meta{}) == fake.Drop
				got := h.judge(psnOf(next))
				if got != want {
					t.Fatalf("run %d, step %d: packet %d held %v, the kernel's model says %v", run, step, next, got, want)
				}
				if got {
					held++
				}
				next++
			}
		}
	}
}

// What is scaled comes out in proportion: cells for cells, symbols for source packets, blocks for messages, MTU for MTU.
func TestScaleKeepsProportions(t *testing.T) {
	thin, whole := NewScale(4096, 1000, 0), NewScale(4096, 1000, 4096)
	if thin.Data != usualThin || whole.Data != 4096 || NewScale(512, 1000, 0).Data != 512 || NewScale(4096, 10_000_000, 0).Data != leastThin {
		t.Errorf("chosen: %+v, %+v", thin, whole)
	}
	p := &csf.Params{K: 32, MaxRepairRatio: 0.25, MessageSize: 128 << 20, Digest: true, PathMTU: 4300}
	a, b := thin.send(p), whole.send(p)
	if !reflect.DeepEqual(b, p) {
		t.Errorf("whole frames change parameters: %+v", b)
	}
	symbols := func(s Scale, p *csf.Params) float64 { // that 1,000 source packets allow
		return p.MaxRepairRatio * 1000 * float64(16+s.Data) / float64(wire.RepairOverhead(32, false, true)+symbol(s.Data))
	}
	if x, y := symbols(thin, a), symbols(whole, b); x < y*0.999999 || x > y*1.000001 {
		t.Errorf("1,000 packets allow %.4f symbols thin, %.4f whole", x, y)
	}
	if x, y := a.MessageSize/(32*int64(thin.Data)), b.MessageSize/(32*4096); x != y {
		t.Errorf("%d blocks a message thin, %d whole", x, y)
	}
	if x, y := a.PathMTU-symbol(thin.Data), b.PathMTU-symbol(4096); x != y {
		t.Errorf("%d octets are left beside a symbol thin, %d whole", x, y)
	}
	for _, octets := range []int64{1 << 20, 128 << 20, 10 << 30} {
		if back := thin.whole(thin.cells(octets)); back < octets*999/1000 || back > octets*1001/1000 {
			t.Errorf("%d octets come back as %d", octets, back)
		}
	}
}
