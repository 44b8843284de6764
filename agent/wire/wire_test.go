// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func bitmap(positions ...int) (m fec.Bitmap) {
	for _, j := range positions {
		m.Set(j)
	}
	return m
}

// message is what every type of message has.
type message interface{ Append(dst []byte) []byte }

// parseAny parses a message of any type and returns a pointer to it.
func parseAny(b []byte) (message, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return nil, err
	}
	return parseAs(h.Type, b)
}

// parseAs parses b with the parser of a type.
func parseAs(t Type, b []byte) (message, error) {
	switch t {
	case TypeRepair:
		x, err := ParseRepair(b)
		return &x, err
	case TypeHello:
		x, err := ParseHello(b)
		return &x, err
	case TypeHelloAck:
		x, err := ParseHelloAck(b)
		return &x, err
	case TypeParamUpdate:
		x, err := ParseParamUpdate(b)
		return &x, err
	case TypeParamAck:
		x, err := ParseParamAck(b)
		return &x, err
	case TypeRepairRequest:
		x, err := ParseRepairRequest(b)
		return &x, err
	case TypeLossReport:
		x, err := ParseLossReport(b)
		return &x, err
	case TypePathReport:
		x, err := ParsePathReport(b)
		return &x, err
	default:
		x, err := ParseClose(b)
		return &x, err
	}
}

// golden has messages written by hand from the figures of Section 9, in words of 32 bits.
var golden = []struct {
	name string
	hex  string
	want message
}{
	{"appendix example: 28 octets and R2[L]", `
		1180002c 0000beef 01010402 00100000 00070010 f0000000 e0000000 00354fdf6d4b40b57e5c400000000000`,
		&Repair{FlowID: 0xbeef, ConfigID: 1, Scheme: fec.Cauchy, K: 4, Index: 2, Start: 0x1000, Session: 7, T: 16, Retx: true,
			Present: bitmap(0, 1, 2, 3), Lost: bitmap(0, 1, 2),
			Symbol: []byte{0, 0x35, 0x4f, 0xdf, 0x6d, 0x4b, 0x40, 0xb5, 0x7e, 0x5c, 0x40, 0, 0, 0, 0, 0}}},
	{"REPAIR of 65 positions with digest, last", `
		1150002c 01020304 ff014109 abcdef00 00000004 80000001 00000001 80000000 1122334455667788 deadbeef`,
		&Repair{FlowID: 0x01020304, ConfigID: 255, Scheme: fec.Cauchy, K: 65, Index: 9, Start: 0xabcdef, T: 4, Last: true, HasDigest: true,
			Present: bitmap(0, 31, 63, 64), Digest: 0x1122334455667788, Symbol: []byte{0xde, 0xad, 0xbe, 0xef}}},
	{"INFO", `11200018 0000beef 01012000 00100000 00000000 00000000`,
		&Repair{FlowID: 0xbeef, ConfigID: 1, Scheme: fec.Cauchy, K: 32, Start: 0x1000, Info: true, Symbol: []byte{}}},
	{"Source Copy", `1140001a 0000beef 01000803 fffffe00 00000002 ff000000 beef`,
		&Repair{FlowID: 0xbeef, ConfigID: 1, Scheme: fec.SourceCopy, K: 8, Index: 3, Start: 0xfffffe, T: 2, Last: true,
			Present: fec.Full(8), Symbol: []byte{0xbe, 0xef}}},
	{"HELLO of IPv4", `12000028 00000000 01040007 2008102c 04000001 0123456789abcdef 0a010002 0a020003 00000015`,
		&Hello{Flow: FlowDescriptor{KindRoCEv2, netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.2.0.3"), 0x15},
			Schemes: 7, MaxK: 32, MaxM: 8, MaxT: 4140, MTU: 1024, Extensions: ExtDigest, Nonce: 0x0123456789abcdef}},
	{"HELLO of IPv6", `
		12000040 00000000 c0060002 ff000400 10000000 fedcba9876543210
		fd000001000000000000000000000002 fd000002000000000000000000000003 00abcdef`,
		&Hello{Flow: FlowDescriptor{KindRoCEv2Response, netip.MustParseAddr("fd00:1::2"), netip.MustParseAddr("fd00:2::3"), 0xabcdef},
			Schemes: 2, MaxK: 255, MaxT: 1024, MTU: 4096, Nonce: 0xfedcba9876543210}},
	{"HELLO_ACK", `13000020 0000beef 01040003 1004086c 04000001 0123456789abcdef 00400000`,
		&HelloAck{FlowID: 0xbeef, Kind: KindRoCEv2, AF: 4, Schemes: 3, MaxK: 16, MaxM: 4, MaxT: 2156, MTU: 1024, Extensions: ExtDigest,
			Nonce: 0x0123456789abcdef, MaxOpenBlocks: 64}},
	{"PARAM_UPDATE", `14000014 0000beef 02012004 102c0000 00100000`,
		&ParamUpdate{FlowID: 0xbeef, ConfigID: 2, Scheme: fec.Cauchy, K: 32, M: 4, T: 4140, Effective: 0x1000}},
	{"PARAM_ACK", `1500000c 0000beef 02030000`, &ParamAck{FlowID: 0xbeef, ConfigID: 2, Status: StatusExhausted}},
	{"REPAIR_REQUEST of a block",
		`1600001c 0000beef 02012103 00100005 12340000 80000000 80000000`,
		&RepairRequest{FlowID: 0xbeef, ConfigID: 2, Scheme: fec.Cauchy, K: 33, Held: 3, Start: 0x1000, M: 5, RequestID: 0x1234, Lost: bitmap(0, 32)}},
	{"REPAIR_REQUEST of a block, fallback", `16200018 0000beef 02022000 00100001 12350000 00000001`,
		&RepairRequest{FlowID: 0xbeef, Fallback: true, ConfigID: 2, Scheme: fec.XOR, K: 32, Start: 0x1000, M: 1, RequestID: 0x1235, Lost: bitmap(31)}},
	{"REPAIR_REQUEST of ranges", `16100014 0000beef 12360002 fffffe03 00100001`,
		&RepairRequest{FlowID: 0xbeef, ByRanges: true, RequestID: 0x1236, Ranges: RangeList{}.Append(Range{0xfffffe, 3}).Append(Range{0x1000, 1})}},
	{"REPAIR_REQUEST of no range, fallback", `1630000c 0000beef 12370000`,
		&RepairRequest{FlowID: 0xbeef, ByRanges: true, Fallback: true, RequestID: 0x1237, Ranges: RangeList{}}},
	{"LOSS_REPORT", `17000028 0000beef 000061a8 00000001 00000002 00000003 00000004 00000005 00000006 ffffffff`,
		&LossReport{FlowID: 0xbeef, Interval: 25000, Expected: 1, Received: 2, Restored: 3, Incomplete: 4, CEMarked: 5, RepairsReceived: 6, RepairsCEMarked: 0xffffffff}},
	{"LOSS_REPORT in detail", `17800034 0000beef 000061a8 000003e8 000003de 00000009 00000004 00000005 0000003c 00000007 00000003 00000015 0000c350`,
		&LossReport{FlowID: 0xbeef, Interval: 25000, Expected: 1000, Received: 990, Restored: 9, Incomplete: 4, CEMarked: 5, RepairsReceived: 60, RepairsCEMarked: 7,
			Detailed: true, Runs: 3, Pairs: 21, Hold: 50000}},
	{"PATH_REPORT", `
		18800048 00000000 03020400 0a010002 0a020003 00000015
		00000007 00000000 00000002 fffffff6 01020000 00001000 00001002
		00000008 0000002a 00000000 000000c8 00000000`,
		&PathReport{Method: MethodNodeDrops, Truncated: true, Src: netip.MustParseAddr("10.1.0.2"), Dst: netip.MustParseAddr("10.2.0.3"), Label: 0x15,
			HopCount: 2, Hops: [MaxHops]Hop{
				{NodeID: 7, Lost: 2, DelayChange: -10, Cause: CauseCongestion, PSNs: PSNList{}.Append(0x1000).Append(0x1002)},
				{NodeID: 8, Period: 42, DelayChange: 200, PSNs: PSNList{}}}}},
	{"PATH_REPORT of IPv6 without entries", `
		18000030 00000000 01000600 fd000001000000000000000000000002 fd000002000000000000000000000003 00000016`,
		&PathReport{Method: MethodAlternateMarking, Src: netip.MustParseAddr("fd00:1::2"), Dst: netip.MustParseAddr("fd00:2::3"), Label: 0x16}},
	{"CLOSE", `1900000c 0000beef 04000000`, &Close{FlowID: 0xbeef, Reason: CloseImpaired}},
}

func TestSection9_GoldenMessages(t *testing.T) {
	types := map[Type]bool{}
	for _, g := range golden {
		b := unhex(t, g.hex)
		if got := g.want.Append([]byte("kept")); string(got) != "kept"+string(b) {
			t.Errorf("%s: Append\n got %x\nwant %x", g.name, got[4:], b)
		}
		got, err := parseAny(b)
		if err != nil {
			t.Errorf("%s: %v", g.name, err)
			continue
		}
		if !reflect.DeepEqual(got, g.want) {
			t.Errorf("%s: Parse\n got %+v\nwant %+v", g.name, got, g.want)
		}
		types[Type(b[0]&0x0f)] = true
	}
	if len(types) != 9 {
		t.Errorf("only %d of nine types", len(types))
	}
}

// Section 9: "Length must equal the UDP payload's length", and be the exact size of the type and its counts. A golden message
// with an octet more or less, with or without its Length corrected, and every shorter beginning of it, is refused; and so is it by
// the parser of every other type.
func TestSection9_ExactLength(t *testing.T) {
	for _, g := range golden {
		b := unhex(t, g.hex)
		own := Type(b[0] & 0x0f)
		for n := range len(b) {
			cut := b[:n:n]
			want := ErrLength
			if n < headerLen {
				want = ErrShort
			}
			if _, err := parseAs(own, cut); !errors.Is(err, want) {
				t.Errorf("%s cut to %d octets: %v", g.name, n, err)
			}
			if n < headerLen {
				continue
			}
			if _, err := parseAs(own, withLength(cut)); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s cut to %d octets, Length as well: %v", g.name, n, err)
			}
		}
		for extra := 1; extra <= 64; extra++ {
			long := append(append([]byte(nil), b...), make([]byte, extra)...)
			if _, err := parseAs(own, long); !errors.Is(err, ErrLength) {
				t.Errorf("%s with %d octets more: %v", g.name, extra, err)
			}
			if _, err := parseAs(own, withLength(long)); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s with %d octets more, Length as well: %v", g.name, extra, err)
			}
		}
		for other := TypeRepair; other <= TypeClose; other++ {
			if _, err := parseAs(other, b); other != own && !errors.Is(err, ErrType) {
				t.Errorf("%s parsed as %v: %v", g.name, other, err)
			}
		}
	}
}

// withLength returns a copy of b whose Length is right.
func withLength(b []byte) []byte {
	b = append([]byte(nil), b...)
	b[2], b[3] = byte(len(b)>>8), byte(len(b))
	return b
}

// Section 9: what has an unknown Version or Type is discarded (MUST).
func TestSection9_UnknownVersionAndType(t *testing.T) {
	for v := range 256 {
		b := []byte{byte(v), 0, 0, 8, 0, 0, 0, 1}
		version, kind := v>>4, Type(v&15)
		want := error(nil)
		if kind < 1 || kind > 9 {
			want = ErrType
		}
		if version != 1 {
			want = ErrVersion
		}
		h, err := ParseHeader(b)
		if !errors.Is(err, want) || err == nil && h != (Header{Type: kind, Length: 8, FlowID: 1}) {
			t.Errorf("first octet %#x: %+v, %v, want %v", v, h, err, want)
		}
	}
}

// Section 9: "Reserved bits are sent as zero and ignored. Unknown flags are ignored." Setting them changes nothing in what
// is parsed, so what is sent again has them zero.
func TestSection9_ReservedBitsIgnored(t *testing.T) {
	type bits struct {
		golden string
		set    []string // octet offset and mask, hexadecimal
	}
	for _, c := range []bits{
		{"appendix example: 28 octets and R2[L]", []string{"0f ff", "14 0f", "15 ff", "17 ff", "18 0f", "1b ff", "01 0f"}},
		{"REPAIR of 65 positions with digest, last", []string{"0f ff", "1c 7f", "1f ff", "01 0f"}},
		{"INFO", []string{"0f ff"}},
		{"HELLO of IPv4", []string{"24 ff", "01 ff", "04 ff", "07 ff"}},
		{"HELLO of IPv6", []string{"3c ff", "01 ff"}},
		{"HELLO_ACK", []string{"1e ff", "1f ff", "01 ff"}},
		{"PARAM_UPDATE", []string{"0e ff", "0f ff", "13 ff", "01 ff"}},
		{"PARAM_ACK", []string{"0a ff", "0b ff", "01 ff"}},
		{"REPAIR_REQUEST of a block", []string{"12 ff", "13 ff", "18 7f", "1b ff", "01 cf"}},
		{"REPAIR_REQUEST of ranges", []string{"01 cf"}},
		{"LOSS_REPORT", []string{"01 7f"}},
		{"LOSS_REPORT in detail", []string{"01 7f"}},
		{"PATH_REPORT", []string{"0b ff", "14 ff", "2a ff", "2b ff", "2c ff", "30 ff", "46 ff", "01 7f"}},
		{"CLOSE", []string{"09 ff", "0a ff", "0b ff", "01 ff"}},
	} {
		for _, g := range golden {
			if g.name != c.golden {
				continue
			}
			b := unhex(t, g.hex)
			for _, s := range c.set {
				v := unhex(t, s)
				b[v[0]] |= v[1]
			}
			got, err := parseAny(b)
			if err != nil {
				t.Errorf("%s: %v", g.name, err)
				continue
			}
			if x, ok := got.(*PathReport); ok { // the lists are the datagram's octets
				for i := range x.HopCount {
					var clean PSNList
					for j := range x.Hops[i].PSNs.Len() {
						clean = clean.Append(x.Hops[i].PSNs.At(j))
					}
					copy(x.Hops[i].PSNs, clean)
				}
			}
			if !reflect.DeepEqual(got, g.want) {
				t.Errorf("%s:\n got %+v\nwant %+v", g.name, got, g.want)
			}
			if again := got.Append(nil); string(again) != string(unhex(t, g.hex)) {
				t.Errorf("%s:\n got %x\nwant %x", g.name, again, unhex(t, g.hex))
			}
		}
	}
}

// Section 9: values that no sender may use.
func TestSection9_Malformed(t *testing.T) {
	for _, c := range []struct{ name, hex string }{
		{"REPAIR with k 0", `11000016 0000beef 01010000 00100000 00000002 0001`},
		{"INFO with a symbol", `1120001a 0000beef 01012000 00100000 00000002 00000000 0001`},
		{"REPAIR without symbol and INFO", `11000018 0000beef 01012000 00100000 00000000 00000000`},
		{"HELLO with AF 5", `12000028 00000000 01050007 2008102c 04000001 0123456789abcdef 0a010002 0a020003 00000015`},
		{"HELLO with AF 6 and IPv4 addresses", `12000028 00000000 01060007 2008102c 04000001 0123456789abcdef 0a010002 0a020003 00000015`},
		{"HELLO_ACK with AF 0", `13000020 0000beef 01000003 1004086c 04000001 0123456789abcdef 00400000`},
		{"PARAM_UPDATE with k 0", `14000014 0000beef 02010004 102c0000 00100000`},
		{"REPAIR_REQUEST with k 0", `16000014 0000beef 02010003 00100005 12340000`},
		{"REPAIR_REQUEST with more ranges counted than there are", `16100014 0000beef 12360003 fffffe03 00100001`},
		{"REPAIR_REQUEST with fewer ranges counted than there are", `16100014 0000beef 12360001 fffffe03 00100001`},
		{"LOSS_REPORT without the words that its flag tells of", `17800028 0000beef 000061a8 00000001 00000002 00000003 00000004 00000005 00000006 ffffffff`},
		{"LOSS_REPORT with words that its flag does not tell of", `17000034 0000beef 000061a8 00000001 00000002 00000003 00000004 00000005 00000006 ffffffff 00000001 00000002 00000003`},
		{"PATH_REPORT with 17 entries", `18000018 00000000 03110400 0a010002 0a020003 00000015`},
		{"PATH_REPORT with AF 0", `18000018 00000000 03000000 0a010002 0a020003 00000015`},
		{"PATH_REPORT with an entry too few", `18000018 00000000 03010400 0a010002 0a020003 00000015`},
		{"PATH_REPORT with an entry too many", `1800002c 00000000 03000400 0a010002 0a020003 00000015 00000007 00000000 00000002 fffffff6 01000000`},
		{"PATH_REPORT with a PSN too few", `1800002c 00000000 03010400 0a010002 0a020003 00000015 00000007 00000000 00000002 fffffff6 01010000`},
		{"PATH_REPORT with a PSN too many", `18000030 00000000 03010400 0a010002 0a020003 00000015 00000007 00000000 00000002 fffffff6 01000000 00001000`},
	} {
		if _, err := parseAny(unhex(t, c.hex)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// Section 11: HELLO_ACK is never larger than HELLO, so nobody can amplify by us.
func TestSection11_HelloAckNoLargerThanHello(t *testing.T) {
	for _, flow := range []string{"10.1.0.2", "fd00:1::2"} {
		a := netip.MustParseAddr(flow)
		hello := Hello{Flow: FlowDescriptor{Kind: KindRoCEv2, Src: a, Dst: a}}
		ack := HelloAck{AF: hello.Flow.AF()}
		if h, k := len(hello.Append(nil)), len(ack.Append(nil)); k > h {
			t.Errorf("%s: HELLO has %d octets, HELLO_ACK %d", flow, h, k)
		}
	}
}

// Section 8.2: an unknown cause reads as 0.
func TestSection8_2_UnknownCause(t *testing.T) {
	for cause := range 256 {
		x := PathReport{Src: netip.MustParseAddr("10.1.0.2"), Dst: netip.MustParseAddr("10.2.0.3"), HopCount: 1}
		x.Hops[0].Cause = Cause(cause)
		want := Cause(cause)
		if cause > 4 {
			want = CauseUnknown
		}
		if got, err := ParsePathReport(x.Append(nil)); err != nil || got.Hops[0].Cause != want {
			t.Errorf("cause %d: %v, %v", cause, got.Hops[0].Cause, err)
		}
	}
}

// Section 9: k is 1 to 255, and a bitmap has ceil(k/32) words with position 0 in the most significant bit.
func TestSection9_BitmapEveryK(t *testing.T) {
	for k := 1; k <= 255; k++ {
		for _, retx := range []bool{false, true} {
			for _, digest := range []bool{false, true} {
				x := Repair{K: uint8(k), T: 2, Retx: retx, HasDigest: digest, Present: fec.Full(256), Symbol: []byte{1, 2}}
				if retx {
					x.Lost = bitmap(0, k-1, k) // k is past the end
				}
				b := x.Append(nil)
				if len(b) != RepairOverhead(k, retx, digest)+2 {
					t.Fatalf("k %d: %d octets, RepairOverhead %d", k, len(b), RepairOverhead(k, retx, digest))
				}
				words := (k + 31) / 32
				for j := range words * 32 {
					if set := b[20+j/8]>>(7-j%8)&1 == 1; set != (j < k) {
						t.Fatalf("k %d: bit %d of the Present Bitmap is %v", k, j, set)
					}
				}
				got, err := ParseRepair(b)
				if err != nil || got.Present != fec.Full(k) || retx && got.Lost != bitmap(0, k-1) || string(got.Symbol) != "\x01\x02" {
					t.Fatalf("k %d: %v, %+v", k, err, got)
				}
			}
		}
	}
}

// The octets before the symbol, as in the MTU arithmetic of Section 4: 20 and 4 for each 32 positions, twice with RETX,
// 8 more with the digest.
func TestSection4_RepairOverhead(t *testing.T) {
	for _, c := range []struct {
		k            int
		retx, digest bool
		want         int
	}{
		{1, false, false, 24}, {4, true, false, 28}, {32, false, false, 24}, {32, true, false, 28}, {33, false, false, 28}, {64, true, false, 36},
		{128, true, false, 52}, {255, false, false, 52}, {255, true, false, 84}, {32, false, true, 32}, {255, true, true, 92},
	} {
		if got := RepairOverhead(c.k, c.retx, c.digest); got != c.want {
			t.Errorf("k %d, retx %v, digest %v: %d, want %d", c.k, c.retx, c.digest, got, c.want)
		}
	}
}

// AppendHead and a symbol behind it are the message; a symbol in a longer buffer is cut at T.
func TestSection9_2_RepairAppendHead(t *testing.T) {
	x := Repair{FlowID: 1, K: 40, T: 3, HasDigest: true, Digest: 9, Present: fec.Full(40), Symbol: []byte{1, 2, 3, 0, 0, 0}}
	want := x.Append(nil)
	if got := append(x.AppendHead(nil), 1, 2, 3); string(got) != string(want) {
		t.Errorf("\n got %x\nwant %x", got, want)
	}
	if _, err := ParseRepair(want); err != nil {
		t.Error(err)
	}
}

func TestLists(t *testing.T) {
	var ranges RangeList
	var psns PSNList
	r := rand.New(rand.NewPCG(1, 2))
	var wantRanges []Range
	var wantPSNs []roce.PSN
	for i := range 50 {
		if ranges.Len() != i || psns.Len() != i {
			t.Fatalf("%d and %d entries, want %d", ranges.Len(), psns.Len(), i)
		}
		x := Range{roce.PSN(r.Uint32() & 0xffffff), uint8(r.Uint32())}
		ranges, wantRanges = ranges.Append(x), append(wantRanges, x)
		psns, wantPSNs = psns.Append(x.Start), append(wantPSNs, x.Start)
	}
	for i := range wantRanges {
		if ranges.At(i) != wantRanges[i] || psns.At(i) != wantPSNs[i] {
			t.Errorf("entry %d: %v and %v, want %v and %v", i, ranges.At(i), psns.At(i), wantRanges[i], wantPSNs[i])
		}
	}
}

// The largest request and report that their counts allow.
func TestSection9_LargestLists(t *testing.T) {
	const maxRanges = (1<<16 - 1 - headerLen - rangesFixedLen) / wordLen
	q := RepairRequest{ByRanges: true}
	for i := range maxRanges {
		q.Ranges = q.Ranges.Append(Range{roce.PSN(i), 1})
	}
	if got, err := ParseRepairRequest(q.Append(nil)); err != nil || got.Ranges.Len() != maxRanges || got.Ranges.At(maxRanges-1).Start != maxRanges-1 {
		t.Errorf("%d ranges: %v", maxRanges, err)
	}
	p := PathReport{Src: netip.MustParseAddr("fd00:1::2"), Dst: netip.MustParseAddr("fd00:2::3"), HopCount: MaxHops}
	for i := range p.Hops {
		for j := range MaxPSNs {
			p.Hops[i].PSNs = p.Hops[i].PSNs.Append(roce.PSN(i<<8 | j))
		}
	}
	got, err := ParsePathReport(p.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	for i := range p.Hops {
		if got.Hops[i].PSNs.Len() != MaxPSNs || got.Hops[i].PSNs.At(MaxPSNs-1) != roce.PSN(i<<8|MaxPSNs-1) {
			t.Errorf("hop %d: %d PSNs", i, got.Hops[i].PSNs.Len())
		}
	}
}

// What is parsed can't be written to by appending to it: the datagram may belong to a ring.
func TestViewsAreCapped(t *testing.T) {
	for _, g := range golden {
		b := append(unhex(t, g.hex), "beyond"...)
		n := len(b) - 6
		got, err := parseAny(b[:n])
		if err != nil {
			t.Fatal(err)
		}
		switch x := got.(type) {
		case *Repair:
			x.Symbol = append(x.Symbol, "overwritten"...)
		case *RepairRequest:
			x.Ranges = x.Ranges.Append(Range{1, 1})
		case *PathReport:
			for i := range x.HopCount {
				x.Hops[i].PSNs = x.Hops[i].PSNs.Append(1)
			}
		}
		if string(b[n:]) != "beyond" || string(b[:n]) != string(unhex(t, g.hex)) {
			t.Errorf("%s: appending to a view wrote to the datagram", g.name)
		}
	}
}

func TestStrings(t *testing.T) {
	for _, c := range []struct {
		v    interface{ String() string }
		want string
	}{
		{TypeRepairRequest, "REPAIR_REQUEST"}, {Type(10), "type 10"}, {Type(0), "type 0"},
		{KindRoCEv2, "RoCEv2"}, {KindRoCEv2Response, "RoCEv2 response"}, {FlowKind(7), "kind 7"},
		{StatusAccepted, "accepted"}, {StatusUnsupportedScheme, "unsupported scheme"}, {StatusLimitsExceeded, "limits exceeded"},
		{StatusExhausted, "resources exhausted"}, {Status(9), "status 9"},
		{MethodAlternateMarking, "alternate marking"}, {MethodClusteredAlternateMarking, "clustered alternate marking"}, {MethodNodeDrops, "node drops"}, {Method(0), "method 0"},
		{CauseUnknown, "unknown"}, {CauseCongestion, "congestion"}, {CauseCorruption, "corruption"}, {CauseFailure, "failure"}, {CausePolicy, "policy"},
		{CloseUnspecified, "unspecified"}, {CloseIdle, "idle or ended"}, {CloseRestarted, "restarted"}, {CloseNoAnswer, "no answer"},
		{CloseImpaired, "persistent impairment"}, {CloseAdministrative, "administrative"}, {CloseResources, "out of resources"}, {CloseReason(7), "reason 7"},
	} {
		if got := c.v.String(); got != c.want {
			t.Errorf("%#v: %q, want %q", c.v, got, c.want)
		}
	}
}
