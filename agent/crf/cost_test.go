// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"fmt"
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

const costK, costM, costBlocks = 32, 2, 64

// traffic is blocks of packets with their repairs, made beforehand.
type traffic struct {
	w       *world
	T       int
	frames  [costBlocks][costK][]byte
	packets [costBlocks][costK]roce.Packet
	repairs [costBlocks][costM]wire.Repair
	acts    []Action
	lose    int // packets lost in each block
	held    bool
}

func newTraffic(tb testing.TB, data int, opts ...option) *traffic {
	w := newWorld(tb, opts...)
	w.now += testRTT
	x := &traffic{w: w, T: data + 18, acts: make([]Action, 0, 4096)}
	if s := w.configure(1, fec.Cauchy, costK, costM, x.T); s != wire.StatusAccepted {
		tb.Fatal(s)
	}
	w.src.data = func(roce.PSN) int { return data }
	for i := range x.frames {
		for j := range costK {
			x.frames[i][j] = w.src.frame(roce.PSN(i*costK + j))
			x.packets[i][j], _ = roce.Parse(x.frames[i][j])
		}
		for r := range costM {
			x.repairs[i][r] = w.src.repair(i*costK, costK, r)
		}
	}
	x.restart()
	return x
}

// restart makes a new flow for the same traffic.
func (x *traffic) restart() {
	w := x.w
	w.f = New(w.now, testID, &w.hello, gateway, local, &w.p, w.env)
	w.f.HandleHello(w.now, &w.hello, &x.acts)
	w.now += testRTT
	u := wire.ParamUpdate{FlowID: testID, ConfigID: 1, Scheme: fec.Cauchy, K: costK, M: costM, T: uint16(x.T)}
	w.f.HandleParamUpdate(w.now, &u, &x.acts)
	x.flush()
}

// flush is what the engine does at the end of a batch.
func (x *traffic) flush() {
	x.acts = x.acts[:0]
	x.w.env.Pool.Reclaim()
}

// block lets block i arrive, its repairs among it, and time pass.
func (x *traffic) block(i int) {
	w := x.w
	for j := range costK {
		if j > 3 && j <= 3+x.lose {
			continue
		}
		w.f.HandleSource(w.now, &x.packets[i][j], x.held && x.lose > 0 && j > 3, &x.acts)
		w.now += 10 * time.Microsecond
	}
	for r := range costM {
		w.f.HandleRepair(w.now, &x.repairs[i][r], false, &x.acts)
	}
	if w.now >= w.f.NextDeadline() {
		w.f.Poll(w.now, &x.acts)
	}
	x.flush()
}

// Steady state: nothing is allocated, neither in order, nor with losses, nor with held packets; LOSS_REPORTs included.
func TestNoAllocation(t *testing.T) {
	for name, c := range map[string]struct {
		lose int
		held bool
		opts []option
	}{
		"in order": {0, false, nil}, "losses": {2, false, []option{immediate}}, "losses, held": {2, true, nil}, "no digest": {1, true, []option{noDigest}},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTraffic(t, 1024, c.opts...)
			x.lose, x.held = c.lose, c.held
			i := 0
			for ; i < 20; i++ {
				x.block(i)
			}
			if n := testing.AllocsPerRun(costBlocks-22, func() { x.block(i); i++ }); n != 0 {
				t.Errorf("%v allocations for a block of %d packets and %d repairs", n, costK, costM)
			}
			s := x.w.f.Stats()
			if want := uint64(c.lose * (i - 1)); s.Restored < want || s.LossReports == 0 || s.RestoreVerifyFailures != 0 {
				t.Errorf("%d restored, want %d; %+v", s.Restored, want, *s)
			}
			check(t, x.w.f)
		})
	}
}

// In the loss-free state a flow keeps what could still be needed, and no more: the packets of the last k positions.
func TestMemoryInOrder(t *testing.T) {
	x := newTraffic(t, 1024)
	for i := range costBlocks {
		x.block(i)
		if n := x.w.f.cells; n > costK+1 {
			t.Fatalf("%d packets kept in order", n)
		}
	}
	x.w.wait(time.Second)
	if n := x.w.f.cells; n != 0 {
		t.Errorf("%d packets kept of a flow that pauses", n)
	}
}

// Packets kept because of a gap go back when it is filled: reordering costs no memory for good.
func TestMemoryUnderReordering(t *testing.T) {
	w := configured(t, fec.Cauchy, 32, 0, immediate)
	for i := range 100 {
		first := 100 + 200*i
		w.packets(first, 200, first+50)
		w.packets(first+50, 1)
		if n := w.f.cells; n > 2*32 {
			t.Fatalf("%d packets kept after %d packets, nothing is missing", n, first-100+200)
		}
	}
}

func BenchmarkInOrder(b *testing.B) {
	for _, data := range []int{1024, 4096} {
		b.Run(fmt.Sprint(data), func(b *testing.B) {
			x := newTraffic(b, data)
			b.SetBytes(int64(len(x.frames[0][0])))
			b.ResetTimer()
			for n := 0; n < b.N; n += costK {
				if n/costK%costBlocks == 0 && n > 0 {
					b.StopTimer()
					x.restart()
					b.StartTimer()
				}
				x.block(n / costK % costBlocks)
			}
		})
	}
}

// BenchmarkLoss is the cost per packet when every block loses packets and is decoded.
func BenchmarkLoss(b *testing.B) {
	for _, data := range []int{1024, 4096} {
		for _, lose := range []int{1, 2} {
			b.Run(fmt.Sprintf("%d/u=%d", data, lose), func(b *testing.B) {
				x := newTraffic(b, data)
				x.lose, x.held = lose, true
				b.SetBytes(int64(len(x.frames[0][0])))
				b.ResetTimer()
				for n := 0; n < b.N; n += costK {
					if n/costK%costBlocks == 0 && n > 0 {
						b.StopTimer()
						x.restart()
						b.StartTimer()
					}
					x.block(n / costK % costBlocks)
				}
				if x.w.f.stats.RestoreVerifyFailures != 0 {
					b.Fatal("decodes refused")
				}
			})
		}
	}
}
