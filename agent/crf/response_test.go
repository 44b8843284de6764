// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// messages makes READ responses of these numbers of packets, from a PSN on.
func (w *world) messages(first int, sizes ...int) {
	ops := map[roce.PSN]roce.Opcode{}
	p := roce.PSN(first)
	for _, n := range sizes {
		for i := range n {
			switch {
			case n == 1:
				ops[p] = roce.ReadResponseOnly
			case i == 0:
				ops[p] = roce.ReadResponseFirst
			case i == n-1:
				ops[p] = roce.ReadResponseLast
			default:
				ops[p] = roce.ReadResponseMiddle
			}
			p++
		}
	}
	w.src.opcode = func(p roce.PSN) roce.Opcode {
		if op, ok := ops[p]; ok {
			return op
		}
		return roce.ReadResponseOnly
	}
	w.src.data = func(roce.PSN) int { return 512 }
}

// Section 4.4, rule 2: in the response space a gap counts only inside one message, or where a request was seen.
func TestSection4_4_ResponseGaps(t *testing.T) {
	for _, c := range []struct {
		name    string
		sizes   []int
		told    [2]int
		lose    []int
		missing int
	}{
		{"between two messages", []int{4, 4, 4}, [2]int{}, []int{104, 105, 106, 107}, 0},
		{"inside one message", []int{4, 8}, [2]int{}, []int{106, 107}, 2},
		{"from inside one to the next", []int{4, 8, 4}, [2]int{}, []int{110, 111, 112}, 3},
		{"the end of one, the next whole", []int{4, 8, 4}, [2]int{}, []int{110, 111}, 1},
		{"the first one of a message", []int{4, 4}, [2]int{}, []int{104}, 1},
		{"the first ones of a message", []int{4, 8}, [2]int{}, []int{104, 105}, 1},
		{"a request was seen", []int{4, 4, 4}, [2]int{104, 4}, []int{104, 105, 106, 107}, 4},
		{"a request for a part was seen", []int{4, 4, 4}, [2]int{105, 2}, []int{104, 105, 106, 107}, 2},
		{"a request further on", []int{4, 4, 4}, [2]int{108, 4}, []int{104, 105, 106, 107}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := configured(t, fec.Cauchy, 16, 2, responses, with(longHold))
			w.messages(100, c.sizes...)
			w.packets(100, 1)
			if c.told[1] > 0 {
				w.f.HandleReadRequest(w.now, roce.PSN(c.told[0]), c.told[1])
				w.k.from, w.k.to = roce.PSN(c.told[0]), roce.PSN(c.told[0]+c.told[1])
			}
			last := c.lose[len(c.lose)-1] + 2
			w.packets(101, last-101, c.lose...)
			if w.f.stats.Missing != c.missing {
				t.Errorf("%d positions missing, want %d", w.f.stats.Missing, c.missing)
			}
			if holds := w.f.hold.waiting > 0; holds != (c.missing > 0) {
				t.Errorf("holding: %v", holds)
			}
			w.wait(time.Second)
			if want := last - 100 - len(c.lose); len(w.out) != want {
				t.Errorf("delivered %v, want %d", w.psns(), want)
			}
		})
	}
}

func TestSection4_4_ResponsesRestored(t *testing.T) {
	w := configured(t, fec.Cauchy, 16, 3, responses)
	w.messages(100, 6, 1, 9)
	w.packets(100, 17, 101, 105, 106)
	for i := range 3 {
		w.repair(w.src.repair(100, 16, i))
	}
	w.wantOrder(100, 17)
}

// A READ that was resumed begins with MIDDLE: it fits (Section 6.1, rule 3).
func TestSection6_1_ResumedReadResponse(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, responses, immediate)
	w.messages(100, 2)
	w.src.opcode = func(p roce.PSN) roce.Opcode {
		switch {
		case p == 103:
			return roce.ReadResponseLast
		case p >= 104 && p < 107:
			return roce.ReadResponseMiddle
		}
		return roce.ReadResponseOnly
	}
	w.packets(100, 9, 104, 105)
	w.repair(w.src.repair(100, 8, 0))
	w.repair(w.src.repair(100, 8, 1))
	if len(w.out) != 9 || w.f.stats.RestoreVerifyFailures != 0 {
		t.Fatalf("delivered %v, %+v", w.psns(), w.f.stats)
	}
	w.wantTrue()
}

// Requests and their ranges: before the first packet, repeated, overlapping, behind, too many.
func TestHandleReadRequest(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, responses, with(longHold))
	w.f.HandleReadRequest(w.now, 100, 8) // before the first packet
	w.packets(99, 1)
	w.f.HandleReadRequest(w.now, 100, 8)
	w.f.HandleReadRequest(w.now, 104, 10)
	w.f.HandleReadRequest(w.now, 100, 8)
	w.f.HandleReadRequest(w.now, 100, 0)
	w.f.HandleReadRequest(w.now, 100, 1<<24)
	for i := range 2 * maxTold {
		w.f.HandleReadRequest(w.now, roce.PSN(1000+i), 1)
	}
	if len(w.f.told) != maxTold {
		t.Errorf("%d ranges remembered", len(w.f.told))
	}
	w.packets(114, 2)
	if w.f.stats.Missing != 14 {
		t.Errorf("%d positions missing, want 14", w.f.stats.Missing)
	}
	w.f.HandleReadRequest(w.now, 90, 10)
	w.wait(time.Second)
	if got := w.psns(); len(got) != 3 {
		t.Errorf("delivered %v", got)
	}
	x := configured(t, fec.Cauchy, 8, 2)
	x.f.HandleReadRequest(x.now, 100, 8)
	if len(x.f.told) != 0 {
		t.Error("the request space remembers requests")
	}
}
