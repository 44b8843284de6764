// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// The fault of Section 6.2, reproduced: two copies of packet a differ in their Identification, so in their ICRC too. The CSF coded the
// first, the receiver holds the second. A decode that takes them for the same restores b with a multiple of their difference added. If
// b is longer than a, the difference of the two ICRCs lands in b's data; and the ICRC of the wrong b is right: with XOR every time, with
// scheme 1 about once in a thousand.

// faultTrial is one block with both copies.
type faultTrial struct {
	*world
	rng   *rand.Rand
	first int
}

const faultK = 32

// newFault makes a receiver that has rule CRF 1, or the digest, or both, or neither.
func newFault(t testing.TB, scheme fec.Scheme, rules, digest bool) *faultTrial {
	opts := []option{immediate}
	if !digest {
		opts = append(opts, noDigest)
	}
	w := configured(t, scheme, faultK, 1, opts...)
	w.f.mixCopies = !rules
	return &faultTrial{world: w, rng: rand.New(rand.NewPCG(3, 4)), first: 1 << 10}
}

// run plays one block: a and b are lost, a is sent again with another Identification, the block's one symbol comes. It reports
// whether b came out, and whether it was right. With a shorter than b, what comes out of mixed copies has wrong data.
func (x *faultTrial) run() (restored, right bool) {
	first := x.first
	x.first += faultK
	x.src.frames = map[roce.PSN][]byte{}
	x.reset()
	a, b := x.rng.IntN(faultK-1), x.rng.IntN(faultK-1)
	for a == b {
		b = x.rng.IntN(faultK - 1)
	}
	short := 16 + 4*x.rng.IntN(8)
	long := short + 4*(2+x.rng.IntN(8))
	x.src.data = func(p roce.PSN) int {
		switch int(p) - first {
		case a:
			return short
		case b:
			return long
		}
		return 24
	}
	x.src.id = func(p roce.PSN) uint16 { return uint16(x.rng.Uint32()) }
	for j := range faultK {
		frame := x.src.frame(roce.PSN(first + j))
		if j != a && j != b {
			x.feed(frame)
		}
	}
	x.now += testRTT // NAK, and a is sent again
	x.feed(x.src.copy(roce.PSN(first+a), uint16(x.rng.Uint32()), false, short))
	m := x.src.repair(first, faultK, 0)
	x.f.HandleRepair(x.now, &m, false, &x.acts)
	for _, act := range x.acts {
		if act.Kind == Inject {
			restored = true
			right = bytes.Equal(append(append([]byte(nil), act.Head...), act.Payload...), x.src.frame(roce.PSN(first+b)))
		}
	}
	// The transport brings b as well, and the block ends.
	x.feed(x.src.frame(roce.PSN(first + b)))
	x.f.Poll(x.now, &x.acts)
	x.acts = x.acts[:0]
	x.env.Pool.Reclaim()
	x.now += testRTT
	return restored, right
}

// feed hands a frame to the flow without the world's checks, which would take most of the time here.
func (x *faultTrial) feed(frame []byte) {
	p, _ := roce.Parse(frame)
	x.f.HandleSource(x.now, &p, false, &x.acts)
	x.acts = x.acts[:0]
}

func TestSection6_2_FaultReproduced(t *testing.T) {
	trials := map[fec.Scheme]int{fec.XOR: 300, fec.Cauchy: 12000}
	switch {
	case os.Getenv("CREM_LONG") != "":
		trials = map[fec.Scheme]int{fec.XOR: 20000, fec.Cauchy: 200000}
	case testing.Short():
		trials = map[fec.Scheme]int{fec.XOR: 100, fec.Cauchy: 6000}
	}
	for _, scheme := range []fec.Scheme{fec.XOR, fec.Cauchy} {
		for _, guard := range []struct {
			name          string
			rules, digest bool
		}{{"neither", false, false}, {"the rules alone", true, false}, {"the digest alone", false, true}, {"both", true, true}} {
			x := newFault(t, scheme, guard.rules, guard.digest)
			n, wrong, right := trials[scheme], 0, 0
			if guard.rules || guard.digest {
				n /= 4
			}
			for range n {
				if restored, ok := x.run(); restored && ok {
					right++
				} else if restored {
					wrong++
				}
			}
			t.Logf("%-6v %-16s: %d of %d restored packets have wrong data (%.1e), %d are right, %d decodes refused", scheme, guard.name, wrong, n, float64(wrong)/float64(n), right, x.f.stats.RestoreVerifyFailures)
			switch {
			case guard.rules || guard.digest:
				if wrong > 0 {
					t.Errorf("%v with %s: wrong data delivered", scheme, guard.name)
				}
			case scheme == fec.XOR && wrong != n:
				t.Errorf("XOR without guard: %d of %d, the fault is not reproduced", wrong, n)
			case scheme == fec.Cauchy && (wrong == 0 || wrong > n/100):
				t.Errorf("scheme 1 without guard: %d of %d, about 1 in 1000 is expected", wrong, n)
			}
			check(t, x.f)
		}
	}
}

// The same by algebra alone, without the receiver: a naive decoder XORs what it holds.
func TestSection6_2_NaiveDecoderAcceptsMixedCopies(t *testing.T) {
	w := configured(t, fec.XOR, 4, 1)
	w.src.data = func(p roce.PSN) int { return []int{16, 64, 24, 24}[int(p)&3] }
	var symbols [4][]byte
	for j := range symbols {
		symbols[j] = sourceSymbol(w.payload(w.src.frame(roce.PSN(j))), testT)
	}
	repair := xor(symbols[0], symbols[1], symbols[2], symbols[3])
	other := sourceSymbol(w.payload(w.src.copy(0, 0x7777, false, 16)), testT)
	mixed := xor(repair, other, symbols[2], symbols[3])
	n := int(binary.BigEndian.Uint16(mixed))
	P := mixed[2 : 2+n]
	original := w.payload(w.src.frame(1))
	var tpl roce.Template
	p, _ := roce.Parse(w.src.frame(1))
	tpl.Set(p.Head())
	if _, ok := tpl.SolveID(P); !ok {
		t.Fatal("the ICRC tells mixed copies apart: the fault that the rules prevent does not exist")
	}
	if !roce.RoCEv2.ValidSource(P, roce.Request, 1, testQPN, 0xffff, 0) || n != len(original) {
		t.Fatal("the result does not look like a packet")
	}
	if bytes.Equal(P[:n-4], original[:n-4]) {
		t.Fatal("the data is right: nothing is reproduced")
	}
}

func sourceSymbol(P []byte, T int) []byte {
	s := make([]byte, T)
	binary.BigEndian.PutUint16(s, uint16(len(P)))
	copy(s[2:], P)
	return s
}

func xor(list ...[]byte) []byte {
	sum := make([]byte, len(list[0]))
	for _, b := range list {
		for i := range b {
			sum[i] ^= b[i]
		}
	}
	return sum
}

// After a decode was refused because of mixed copies, coded retransmission over what is missing still brings the packet back.
func TestSection6_4_RestoredAfterARefusal(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(longHold), immediate)
	w.packets(100, 9, 102, 105)
	w.wait(testRTT/4 + time.Millisecond)
	w.arrive(w.src.copy(102, 4711, true, w.src.data(102)))
	w.repair(w.src.repair(100, 8, 0))
	w.wait(testRTT)
	r := w.requests()
	if len(r) == 0 || r[len(r)-1].req.Lost != set(2, 5) {
		t.Fatalf("%+v", r)
	}
	w.repair(w.src.retx(100, 8, 2, set(2, 5)))
	if s := w.f.Stats(); s.Restored != 1 || s.LateDecodesRefused != 1 || s.RestoreVerifyFailures != 0 {
		t.Errorf("%+v", *s)
	}
}
