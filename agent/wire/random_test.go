// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// generator makes random messages of every type with every field in use.
type generator struct{ *rand.Rand }

func (g generator) u8() uint8     { return uint8(g.Uint32()) }
func (g generator) u16() uint16   { return uint16(g.Uint32()) }
func (g generator) bool() bool    { return g.IntN(2) == 0 }
func (g generator) psn() roce.PSN { return roce.PSN(g.Uint32() & 0xffffff) }
func (g generator) k() uint8      { return uint8(1 + g.IntN(255)) }

func (g generator) bitmap(k uint8) fec.Bitmap {
	return fec.Bitmap{g.Uint64(), g.Uint64(), g.Uint64(), g.Uint64()}.And(fec.Full(int(k)))
}

func (g generator) addresses() (src, dst netip.Addr) {
	var a, b [16]byte
	for i := range a {
		a[i], b[i] = g.u8(), g.u8()
	}
	if g.bool() {
		return netip.AddrFrom4([4]byte(a[:4])), netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16(a), netip.AddrFrom16(b)
}

func (g generator) repair() *Repair {
	x := &Repair{FlowID: g.Uint32(), ConfigID: g.u8(), Scheme: fec.Scheme(g.u8()), K: g.k(), Index: g.u8(), Start: g.psn(), Session: g.u16(),
		Retx: g.bool(), Last: g.bool(), Info: g.IntN(4) == 0, HasDigest: g.bool(), Symbol: []byte{}}
	x.Present = g.bitmap(x.K)
	if x.Retx {
		x.Lost = g.bitmap(x.K)
	}
	if x.HasDigest {
		x.Digest = g.Uint64()
	}
	if !x.Info {
		x.T = uint16(1 + g.IntN(300))
		for range x.T {
			x.Symbol = append(x.Symbol, g.u8())
		}
	}
	return x
}

func (g generator) request() *RepairRequest {
	x := &RepairRequest{FlowID: g.Uint32(), RequestID: g.u16(), Fallback: g.bool(), ByRanges: g.bool()}
	if x.ByRanges {
		x.Ranges = RangeList{}
		for range g.IntN(40) {
			x.Ranges = x.Ranges.Append(Range{g.psn(), g.u8()})
		}
		return x
	}
	x.ConfigID, x.Scheme, x.K, x.Held, x.Start, x.M = g.u8(), fec.Scheme(g.u8()), g.k(), g.u8(), g.psn(), g.u8()
	x.Lost = g.bitmap(x.K)
	return x
}

func (g generator) path() *PathReport {
	x := &PathReport{Method: Method(g.u8()), Truncated: g.bool(), Label: g.Uint32() & 0xffffff, HopCount: g.IntN(MaxHops + 1)}
	x.Src, x.Dst = g.addresses()
	for i := range x.HopCount {
		x.Hops[i] = Hop{NodeID: g.Uint32(), Period: g.Uint32(), Lost: g.Uint32(), DelayChange: g.Int32() - 1<<30, Cause: Cause(g.IntN(5)), PSNs: PSNList{}}
		for range g.IntN(30) {
			x.Hops[i].PSNs = x.Hops[i].PSNs.Append(g.psn())
		}
	}
	return x
}

func (g generator) message(t Type) message {
	switch t {
	case TypeRepair:
		return g.repair()
	case TypeHello:
		x := &Hello{Schemes: g.u16(), MaxK: g.u8(), MaxM: g.u8(), MaxT: g.u16(), MTU: g.u16(), Extensions: g.u16(), Nonce: g.Uint64()}
		x.Flow.Kind, x.Flow.Label = FlowKind(g.u8()), g.Uint32()&0xffffff
		x.Flow.Src, x.Flow.Dst = g.addresses()
		return x
	case TypeHelloAck:
		return &HelloAck{FlowID: g.Uint32(), Kind: FlowKind(g.u8()), AF: uint8(4 + 2*g.IntN(2)), Schemes: g.u16(), MaxK: g.u8(), MaxM: g.u8(),
			MaxT: g.u16(), MTU: g.u16(), Extensions: g.u16(), Nonce: g.Uint64(), MaxOpenBlocks: g.u16()}
	case TypeParamUpdate:
		return &ParamUpdate{FlowID: g.Uint32(), ConfigID: g.u8(), Scheme: fec.Scheme(g.u8()), K: g.k(), M: g.u8(), T: g.u16(), Effective: g.psn()}
	case TypeParamAck:
		return &ParamAck{FlowID: g.Uint32(), ConfigID: g.u8(), Status: Status(g.u8())}
	case TypeRepairRequest:
		return g.request()
	case TypeLossReport:
		x := &LossReport{FlowID: g.Uint32(), Interval: g.Uint32(), Expected: g.Uint32(), Received: g.Uint32(), Restored: g.Uint32(), Incomplete: g.Uint32(),
			CEMarked: g.Uint32(), RepairsReceived: g.Uint32(), RepairsCEMarked: g.Uint32(), Detailed: g.bool()}
		if x.Detailed {
			x.Runs, x.Pairs, x.Hold = g.Uint32(), g.Uint32(), g.Uint32()
		}
		return x
	case TypePathReport:
		return g.path()
	default:
		return &Close{FlowID: g.Uint32(), Reason: CloseReason(g.u8())}
	}
}

// Parse(Append(x)) is x, for every type and every field.
func TestAppendThenParse(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(11, 12))}
	for kind := TypeRepair; kind <= TypeClose; kind++ {
		for range 2000 {
			want := g.message(kind)
			got, err := parseAny(want.Append(nil))
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%v: %v\n got %+v\nwant %+v", kind, err, got, want)
			}
		}
	}
}

// FuzzParse: no parser panics or reads beyond the datagram; what one accepts, Append writes so that it is accepted again and
// means the same; and a datagram that is what Append writes comes back octet for octet.
func FuzzParse(f *testing.F) {
	for _, g := range golden {
		f.Add(unhex(f, g.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		b = b[:len(b):len(b)]
		for kind := TypeRepair; kind <= TypeClose; kind++ {
			x, err := parseAs(kind, b)
			if err != nil {
				continue
			}
			canonical := x.Append(nil)
			if len(canonical) != len(b) {
				t.Fatalf("%v: %d octets became %d", kind, len(b), len(canonical))
			}
			y, err := parseAs(kind, canonical)
			if err != nil {
				t.Fatalf("%v: own message refused: %v", kind, err)
			}
			if again := y.Append(nil); string(again) != string(canonical) {
				t.Fatalf("%v:\n got %x\nwant %x", kind, again, canonical)
			}
			for i := range b { // what differs was reserved: one or more bits that Append sends as zero
				if canonical[i]&^b[i] != 0 {
					t.Fatalf("%v: octet %d became %#x from %#x", kind, i, canonical[i], b[i])
				}
			}
		}
	})
}

// Nothing allocates on the way of REPAIR, REPAIR_REQUEST, LOSS_REPORT, nor for any other message.
func TestNoAllocation(t *testing.T) {
	buffer := make([]byte, 0, 1<<16)
	for _, g := range golden {
		b := unhex(t, g.hex)
		allocs := testing.AllocsPerRun(100, func() {
			var err error
			switch Type(b[0] & 0x0f) {
			case TypeRepair:
				var x Repair
				x, err = ParseRepair(b)
				x.Append(buffer)
			case TypeHello:
				var x Hello
				x, err = ParseHello(b)
				x.Append(buffer)
			case TypeHelloAck:
				var x HelloAck
				x, err = ParseHelloAck(b)
				x.Append(buffer)
			case TypeParamUpdate:
				var x ParamUpdate
				x, err = ParseParamUpdate(b)
				x.Append(buffer)
			case TypeParamAck:
				var x ParamAck
				x, err = ParseParamAck(b)
				x.Append(buffer)
			case TypeRepairRequest:
				var x RepairRequest
				x, err = ParseRepairRequest(b)
				x.Append(buffer)
			case TypeLossReport:
				var x LossReport
				x, err = ParseLossReport(b)
				x.Append(buffer)
			case TypePathReport:
				var x PathReport
				x, err = ParsePathReport(b)
				x.Append(buffer)
			case TypeClose:
				var x Close
				x, err = ParseClose(b)
				x.Append(buffer)
			}
			if err != nil {
				t.Error(err)
			}
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations", g.name, allocs)
		}
	}
}

var sink int

func benchmarkRepair() Repair {
	return Repair{FlowID: 1, Scheme: fec.Cauchy, K: 32, T: 4140, HasDigest: true, Present: fec.Full(32), Symbol: make([]byte, 4140)}
}

func BenchmarkParseRepair(b *testing.B) {
	x := benchmarkRepair()
	datagram := x.Append(nil)
	for b.Loop() {
		y, _ := ParseRepair(datagram)
		sink += len(y.Symbol)
	}
}

func BenchmarkAppendRepairHead(b *testing.B) {
	x := benchmarkRepair()
	buffer := make([]byte, 0, 128)
	for b.Loop() {
		sink += len(x.AppendHead(buffer))
	}
}

func BenchmarkParseRepairRequest(b *testing.B) {
	x := RepairRequest{FlowID: 1, K: 32, Lost: bitmap(3, 4)}
	datagram := x.Append(nil)
	for b.Loop() {
		y, _ := ParseRepairRequest(datagram)
		sink += y.Lost.Count()
	}
}
