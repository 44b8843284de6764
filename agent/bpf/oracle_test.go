// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/packet/fake"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/netns"
)

const (
	tcxNext  = -1
	tcxDrop  = 2
	ringSize = 16
	port     = 52000
)

// twin is the real program and its model, side by side.
type twin struct {
	t     testing.TB
	real  *bpf.Objects
	model *fake.Program
	link  bpf.Direction // the real ingress program: Ingress or Bare
	noise *rand.Rand
	index map[int]int // real flow index to the model's
	rings []packet.Ring
	alive bool
}

// The model's clock stands still; a beat in the far future is alive for the real one.
const (
	modelNow = time.Hour
	future   = 1000 * time.Hour
)

// onEveryLink runs a test with the ingress program of each sort of uplink.
func onEveryLink(t *testing.T, workers int, test func(t *testing.T, w *twin)) {
	for _, link := range []bpf.Direction{bpf.Ingress, bpf.Bare} {
		t.Run(string(link), func(t *testing.T) {
			w := newTwin(t, workers)
			w.link = link
			test(t, w)
		})
	}
}

func newTwin(t testing.TB, workers int) *twin {
	t.Helper()
	netns.NeedRoot(t)
	real, err := bpf.Load(bpf.Config{Workers: workers, SlotOctets: 1536, RingSlots: ringSize, MaxFlows: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { real.Close() })
	model := fake.NewProgram(workers, ringSize, func() time.Duration { return modelNow })
	model.StaleAfter, model.MaxFlows, model.SlotOctets = 10*time.Millisecond, 64, 1536
	w := &twin{t: t, real: real, model: model, link: bpf.Ingress, noise: rand.New(rand.NewPCG(3, 4)), index: map[int]int{}}
	for i := range workers {
		w.rings = append(w.rings, real.Ring(i))
	}
	w.beat(true)
	return w
}

func (w *twin) beat(alive bool) {
	w.alive = alive
	for i := range w.rings {
		if alive {
			w.real.Beat(i, packet.Now()+future)
			w.model.Beat(i, modelNow)
		} else {
			w.real.Beat(i, 0)
			w.model.Beat(i, 0)
		}
	}
}

func (w *twin) register(key packet.FlowKey, worker, mtu int, mode packet.Mode) int {
	w.t.Helper()
	index, err := w.real.RegisterFlow(key, worker, mtu, mode)
	if err != nil {
		w.t.Fatal(err)
	}
	model, err := w.model.RegisterFlow(key, worker, mtu, mode)
	if err != nil {
		w.t.Fatal(err)
	}
	w.index[index] = model
	return index
}

// ingress gives a frame, whose Ethernet addresses are zeros, to both and compares the verdicts. What a bare uplink has
// in front of a packet is some other packet's, and may look like an IP header: the real program must not keep it.
func (w *twin) ingress(frame []byte, segment int) fake.Verdict {
	w.t.Helper()
	given := frame
	if w.link == bpf.Bare {
		given = bytes.Clone(frame)
		for i := range given[:12] {
			given[i] = byte(w.noise.Uint32())
		}
		given[0] = []byte{0x45, 0x60, given[0]}[w.noise.IntN(3)]
	}
	verdict, _ := w.real.Run(w.t, w.link, given, 0, segment)
	want := w.model.Ingress(frame, fake.Meta{Ifindex: 1, Segment: segment})
	got := fake.Pass
	if verdict == tcxDrop {
		got = fake.Drop
	} else if verdict != tcxNext {
		w.t.Fatalf("verdict %d", verdict)
	}
	if got != want {
		w.t.Fatalf("verdict %v, want %v", got, want)
	}
	return got
}

// drain compares what the rings have.
func (w *twin) drain() {
	w.t.Helper()
	for i, r := range w.rings {
		var got, want [2 * ringSize]packet.Frame
		n, m := r.Next(got[:]), w.model.Ring(i).Next(want[:])
		if n != m {
			w.t.Fatalf("ring %d has %d frames, want %d", i, n, m)
		}
		for k := range n {
			g, m := got[k], want[k]
			if g.Flow != packet.NoFlow {
				g.Flow = w.index[g.Flow]
			}
			if !bytes.Equal(g.Data, m.Data) || g.Flags != m.Flags || g.Flow != m.Flow || g.Len != m.Len ||
				g.Domain != m.Domain || g.Ifindex != m.Ifindex {
				w.t.Fatalf("ring %d, frame %d:\n got %+v\nwant %+v", i, k, g, m)
			}
			if g.Time <= 0 || g.Time > packet.Now() {
				w.t.Fatalf("frame of %v at %v", g.Time, packet.Now())
			}
		}
		r.Release()
		w.model.Ring(i).Release()
		if r.Missed() != w.model.Ring(i).Missed() {
			w.t.Fatalf("ring %d missed %d, want %d", i, r.Missed(), w.model.Ring(i).Missed())
		}
	}
}

func (w *twin) compareWord(index int) packet.Word {
	w.t.Helper()
	got, want := packet.Word(w.real.Word(index).Load()), packet.Word(w.model.Word(w.index[index]).Load())
	if got != want {
		w.t.Fatalf("word of flow %d: %#x, want %#x", index, uint64(got), uint64(want))
	}
	return got
}

func (w *twin) compareStats() {
	w.t.Helper()
	got, err := w.real.Stats()
	if err != nil {
		w.t.Fatal(err)
	}
	want := w.model.Stats()
	for r := range bpf.Reasons {
		if got[r] != want[r] {
			w.t.Errorf("%v: %d, want %d", bpf.Reason(r), got[r], want[r])
		}
	}
}

var (
	hostA  = netip.MustParseAddr("10.1.0.5")
	hostB  = netip.MustParseAddr("10.2.0.6")
	hostA6 = netip.MustParseAddr("fd00:1::5")
	hostB6 = netip.MustParseAddr("fd00:2::6")
)

// Sections 4.2, 4.4 and 6.1: the real ingress program and the model agree on every packet of a random history
// of flows of both spaces, both modes and IP versions, with gaps, retransmissions, READ requests, hand-backs, full rings,
// a silent and a bypassed agent.
func TestProgramAgreesWithModel(t *testing.T) {
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := newTwin(t, 2)
		if seed >= 5 {
			w.link = bpf.Bare
		}
		type state struct {
			key   packet.FlowKey
			index int
		}
		var flows []*state
		for i := range 8 {
			src, dst := hostA, hostB
			if i%2 == 1 {
				src, dst = hostA6, hostB6
			}
			f := &state{key: packet.FlowKey{Src: src, Dst: dst, QPN: uint32(100 + i/4), Response: i/2%2 == 1}}
			mode := packet.InOrder
			if random.IntN(5) == 0 {
				mode = packet.Immediate
			}
			f.index = w.register(f.key, random.IntN(2), 256<<random.IntN(5), mode)
			flows = append(flows, f)
		}
		requests := []roce.Opcode{roce.SendFirst, roce.WriteMiddle, roce.WriteLast, roce.ReadRequest, roce.CompareSwap, roce.ClassXRC + roce.ReadRequest, roce.Acknowledge}
		responses := []roce.Opcode{roce.ReadResponseFirst, roce.ReadResponseMiddle, roce.ReadResponseLast, roce.ReadResponseOnly, roce.AtomicAcknowledge, roce.ReadResponseMiddle}
		for range 6000 {
			f := flows[random.IntN(len(flows))]
			word := w.compareWord(f.index)
			switch random.IntN(40) {
			case 0:
				w.drain()
			case 1:
				w.beat(random.IntN(4) != 0)
			case 2:
				on := random.IntN(4) == 0
				w.real.SetBypass(on)
				w.model.SetBypass(on)
			case 3:
				from := (word.Expected() + uint32(random.IntN(6)) - 3) & 0xffffff
				to := (from + uint32(random.IntN(5))) & 0xffffff
				w.real.SetSure(f.index, from, to)
				w.model.SetSure(w.index[f.index], from, to)
			case 4, 5, 6:
				held, next, inside := word.Held(), word.Expected()+uint32(random.IntN(4)), random.IntN(2) == 0
				if random.IntN(4) == 0 {
					held++
				}
				got := w.real.HandBack(f.index, held, next, inside)
				if want := w.model.HandBack(w.index[f.index], held, next, inside); got != want {
					t.Fatalf("hand back: %v, want %v", got, want)
				}
				if want := word.Hold() && held == word.Held(); got != want {
					t.Fatalf("hand back of %#x with %d held: %v", uint64(word), held, got)
				}
			case 7:
				if random.IntN(10) == 0 {
					mode, mtu := packet.Mode(random.IntN(2)), 256<<random.IntN(5)
					if err := w.real.UpdateFlow(f.index, mtu, mode); err != nil {
						t.Fatal(err)
					}
					if err := w.model.UpdateFlow(w.index[f.index], mtu, mode); err != nil {
						t.Fatal(err)
					}
				}
			default:
				opcodes := requests
				if f.key.Response {
					opcodes = responses
				}
				psn := word.Expected()
				if random.IntN(3) == 0 {
					psn += uint32(random.IntN(7)) - 3
				}
				if random.IntN(200) == 0 {
					psn = random.Uint32()
				}
				p := frames.RoCE{
					Headers: frames.Headers{Src: f.key.Src, Dst: f.key.Dst, Checksum: random.IntN(2) == 0, Partial: random.IntN(3) == 0},
					Opcode:  opcodes[random.IntN(len(opcodes))], QPN: f.key.QPN, PSN: psn & 0xffffff,
					DMALength: uint32(random.IntN(5000)), Data: make([]byte, random.IntN(1600)),
				}
				w.ingress(p.Frame(), 0)
			}
		}
		w.drain()
		w.compareStats()
		if s := w.model.Stats(); s[bpf.Held] == 0 || s[bpf.OpenRingFull] == 0 || s[bpf.OpenStale] == 0 || s[bpf.OpenBypass] == 0 ||
			s[bpf.PassedBehind] == 0 || s[bpf.PassedInOrder] == 0 || s[bpf.PassedImmediate] == 0 || s[bpf.OpenTooLong] == 0 {
			t.Errorf("seed %d: the history has not had everything: %v", seed, s)
		}
	}
}

// Section 4.4: the program takes as sources exactly the opcodes that package roce does, in the same space.
func TestSourceOpcodes(t *testing.T) {
	onEveryLink(t, 1, func(t *testing.T, w *twin) {
		for op := range 256 {
			for response := range 2 {
				key := packet.FlowKey{Src: hostA, Dst: hostB, QPN: 77, Response: response == 1}
				index := w.register(key, 0, 1024, packet.InOrder)
				p := frames.RoCE{Headers: frames.Headers{Src: hostA, Dst: hostB}, Opcode: roce.Opcode(op), QPN: 77, PSN: 5, Data: make([]byte, 64)}
				w.ingress(p.Frame(), 0)
				space, source := roce.Opcode(op).Space()
				learned := !w.compareWord(index).Learn()
				if want := source && (space == roce.Response) == key.Response; learned != want {
					t.Errorf("%v: taken into the %v space: %v, want %v", roce.Opcode(op), space, learned, want)
				}
				w.drain()
				if err := w.real.UnregisterFlow(index); err != nil {
					t.Fatal(err)
				}
				if err := w.model.UnregisterFlow(w.index[index]); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// What can't be protected passes, is counted, and leaves the flow as it was.
func TestUnprotectablePasses(t *testing.T) {
	plain := frames.Headers{Src: hostA, Dst: hostB}
	plain6 := frames.Headers{Src: hostA6, Dst: hostB6}
	with := func(h frames.Headers, change func(*frames.Headers)) frames.Headers { change(&h); return h }
	for _, c := range []struct {
		name    string
		headers frames.Headers
		segment int
		change  func([]byte) []byte
		want    bpf.Reason
	}{
		{"IPv4 options", with(plain, func(h *frames.Headers) { h.Options = 4 }), 0, nil, bpf.PassOptions},
		{"first fragment", with(plain, func(h *frames.Headers) { h.MoreFragments = true }), 0, nil, bpf.PassFragment},
		{"IPv6 options", with(plain6, func(h *frames.Headers) { h.Options = 2 }), 0, nil, bpf.PassExtension},
		{"IPv6 first fragment", with(plain6, func(h *frames.Headers) { h.MoreFragments = true }), 0, nil, bpf.PassFragment},
		{"super-packet", plain, 100, nil, bpf.PassGSO},
		{"transport version", plain, 0, func(f []byte) []byte { f[43] |= 3; return f }, bpf.PassMalformed},
		{"UDP length too small", plain, 0, func(f []byte) []byte { f[39] -= 4; return f }, bpf.PassMalformed},
		{"cut frame", plain, 0, func(f []byte) []byte { return f[:len(f)-8] }, bpf.PassMalformed},
		{"not a multiple of 4", plain, 0, func(f []byte) []byte { f[17]--; f[39]--; return f[:len(f)-1] }, bpf.PassMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEveryLink(t, 1, func(t *testing.T, w *twin) {
				index := w.register(packet.FlowKey{Src: c.headers.Src, Dst: c.headers.Dst, QPN: 77}, 0, 1024, packet.InOrder)
				frame := frames.RoCE{Headers: c.headers, Opcode: roce.SendOnly, QPN: 77, PSN: 9, Data: make([]byte, 200)}.Frame()
				if c.change != nil {
					frame = c.change(frame)
				}
				if got := w.ingress(frame, c.segment); got != fake.Pass {
					t.Errorf("dropped")
				}
				if !w.compareWord(index).Learn() {
					t.Error("the flow learned from it")
				}
				w.drain()
				w.compareStats()
				if s := w.model.Stats(); s[c.want] != 1 {
					t.Errorf("%v not counted: %v", c.want, s)
				}
			})
		})
	}
	// Later fragments show no ports: nothing is known of them, and nothing counted.
	w := newTwin(t, 1)
	w.ingress(with(plain, func(h *frames.Headers) { h.FragmentOffset = 1024 }).Frame(make([]byte, 100)), 0)
	w.ingress(with(plain6, func(h *frames.Headers) { h.FragmentOffset = 1024 }).Frame(make([]byte, 100)), 0)
	w.compareStats()
}

// Section 4.2, rule 5: queue pairs 0 and 1 are management, never sources.
func TestManagementQueuePairs(t *testing.T) {
	w := newTwin(t, 1)
	for qpn := range uint32(3) {
		index := w.register(packet.FlowKey{Src: hostA, Dst: hostB, QPN: qpn}, 0, 1024, packet.InOrder)
		w.ingress(frames.RoCE{Headers: frames.Headers{Src: hostA, Dst: hostB}, Opcode: roce.SendOnly, QPN: qpn, PSN: 9}.Frame(), 0)
		if got := w.compareWord(index).Learn(); got != (qpn <= 1) {
			t.Errorf("queue pair %d: still learning: %v", qpn, got)
		}
	}
}

// The count of held packets wraps within its 38 bits and touches no other field.
func TestHeldCountWraps(t *testing.T) {
	w := newTwin(t, 1)
	index := w.register(packet.FlowKey{Src: hostA, Dst: hostB, QPN: 77}, 0, 1024, packet.InOrder)
	most := uint64(packet.HoldBit) | packet.HeldMask<<24 | 100
	w.real.Word(index).Store(most)
	w.model.Word(w.index[index]).Store(most)
	w.ingress(frames.RoCE{Headers: frames.Headers{Src: hostA, Dst: hostB}, Opcode: roce.SendOnly, QPN: 77, PSN: 105}.Frame(), 0)
	if got := w.compareWord(index); got != packet.HoldBit|100 {
		t.Errorf("word %#x", uint64(got))
	}
}

// Section 5.1, rule 6: "packets seen" of an unregistered flow, in either space, and not of another queue pair.
func TestSection5_1_Seen(t *testing.T) {
	w := newTwin(t, 1)
	key := packet.FlowKey{Src: hostA, Dst: hostB, QPN: 77}
	if _, ok := w.real.Seen(key); ok {
		t.Error("seen before it came")
	}
	w.ingress(frames.RoCE{Headers: frames.Headers{Src: hostA, Dst: hostB}, Opcode: roce.SendOnly, QPN: 77, PSN: 9}.Frame(), 0)
	if age, ok := w.real.Seen(key); !ok || age > time.Minute {
		t.Errorf("age %v, %v", age, ok)
	}
	for _, other := range []packet.FlowKey{
		{Src: hostA, Dst: hostB, QPN: 78}, {Src: hostB, Dst: hostA, QPN: 77}, {Src: hostA, Dst: hostB, QPN: 77, Response: true},
	} {
		if _, ok := w.real.Seen(other); ok {
			t.Errorf("%+v seen", other)
		}
	}
}
