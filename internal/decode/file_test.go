// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"crem.dev/crem/agent/roce"

	"github.com/google/go-cmp/cmp"
)

// The same packets in another file format or behind another link header give the same lines.
func TestFormats(t *testing.T) {
	all := frames(t)
	o := Options{Port: cremPort}
	want, wantSummary := run(t, pcap(t, 1, 1<<16, all), o)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(pcap(t, 1, 1<<16, all)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	convert := func(f func(frame []byte) []byte) (converted [][]byte) {
		for _, frame := range all {
			converted = append(converted, f(frame))
		}
		return converted
	}
	sll := convert(func(f []byte) []byte { return append(append(make([]byte, 14), f[12:14]...), f[14:]...) })
	sll2 := convert(func(f []byte) []byte { return append(append(bytes.Clone(f[12:14]), make([]byte, 18)...), f[14:]...) })
	for name, capture := range map[string][]byte{
		"pcapng": pcapng(t, all), "pcap.gz": zipped.Bytes(), "Linux cooked": pcap(t, 113, 1<<16, sll), "Linux cooked v2": pcap(t, 276, 1<<16, sll2),
	} {
		got, s := run(t, capture, o)
		if got != want || s != wantSummary {
			t.Errorf("%s: %v\n%s", name, s, cmp.Diff(want, got))
		}
	}
	// Raw IP has no place for a VLAN tag or ARP.
	var raw, framed [][]byte
	for _, f := range all {
		if etherType := binary.BigEndian.Uint16(f[12:]); etherType == 0x0800 || etherType == 0x86dd {
			raw, framed = append(raw, f[14:]), append(framed, f)
		}
	}
	want, wantSummary = run(t, pcap(t, 1, 1<<16, framed), o)
	if got, s := run(t, pcap(t, 101, 1<<16, raw), o); got != want || s != wantSummary {
		t.Errorf("raw IP: %v\n%s", s, cmp.Diff(want, got))
	}
}

func TestErrors(t *testing.T) {
	all := frames(t)
	good := pcap(t, 1, 1<<16, all)
	for _, c := range []struct {
		name    string
		capture []byte
		want    string
	}{
		{"empty", nil, "not a capture: neither pcap nor pcapng"},
		{"text", []byte("not a capture at all, but long enough"), "not a capture: neither pcap nor pcapng"},
		{"half a file header", good[:20], "not a capture: neither pcap nor pcapng"},
		{"half a packet", good[:len(good)-3], "after packet 26: unexpected EOF"},
		{"a packet header alone", good[:24+16], "after packet 0: unexpected EOF"},
		{"half a packet header", good[:24+7], "after packet 0: unexpected EOF"},
		{"a length beyond reason", append(bytes.Clone(good[:24+8]), 0, 0, 0, 0x7f, 0, 0, 0, 0x7f), "damaged file"},
		{"half a gzip header", []byte{0x1f, 0x8b, 8}, "not a capture: unexpected EOF"},
		{"wireless", pcap(t, 105, 1<<16, all), "link type 105 is not supported: capture on an Ethernet interface or with -i any"},
		{"half a block", pcapng(t, all)[:2001], "unexpected EOF"},
		{"a section without its order", []byte{0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 1, 2, 3, 4}, errBlock.Error()},
	} {
		_, err := Capture(&bytes.Buffer{}, bytes.NewReader(c.capture), Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// blocks assembles a pcapng file in a byte order from the types and bodies of its blocks.
func blocks(order binary.AppendByteOrder, list ...any) (b []byte) {
	for i := 0; i < len(list); i += 2 {
		var body []byte
		for _, v := range list[i+1].([]any) {
			switch v := v.(type) {
			case uint16:
				body = order.AppendUint16(body, v)
			case uint32:
				body = order.AppendUint32(body, v)
			case uint64:
				body = order.AppendUint64(body, v)
			case []byte:
				body = append(append(body, v...), make([]byte, -len(v)&3)...)
			}
		}
		b = order.AppendUint32(b, uint32(list[i].(int)))
		b = order.AppendUint32(b, uint32(len(body)+12))
		b = append(b, body...)
		b = order.AppendUint32(b, uint32(len(body)+12))
	}
	return b
}

// What pcapgo's writer doesn't write: other byte orders, interfaces with their own link type, resolution and offset, the
// simple and the obsolete packet block, unknown blocks, a second section.
func TestPcapng(t *testing.T) {
	ack := rocePacket(t, hosts[1], hosts[0], roce.Acknowledge, 0x16, 0x10, []byte{0x1f, 0, 0, 1})[:62]
	n := uint32(len(ack))
	type order interface {
		binary.AppendByteOrder
		binary.ByteOrder
	}
	for _, o := range []order{binary.LittleEndian, binary.BigEndian} {
		section := []any{uint32(0x1a2b3c4d), uint16(1), uint16(0), ^uint64(0)}
		file := blocks(o, blockSection, section,
			blockInterface, []any{uint16(1), uint16(0), uint32(0)},
			blockInterface, []any{uint16(101), uint16(0), uint32(100), uint16(2), uint16(3), []byte("wan"),
				uint16(9), uint16(1), []byte{9}, uint16(14), uint16(8), uint64(1000), uint16(0), uint16(0)},
			blockInterface, []any{uint16(1), uint16(0), uint32(0), uint16(9), uint16(1), []byte{0x80 | 10}},
			blockEnhanced, []any{uint32(0), uint32(0), uint32(1500000), n, n, ack},
			0xbad, []any{[]byte("unknown")},
			blockEnhanced, []any{uint32(1), uint32(1), uint32(0), n - 14, n - 14, ack[14:]},
			blockPacket, []any{uint16(2), uint16(0), uint32(0), uint32(1024 + 512), n, n, ack},
			blockSimple, []any{n, ack},
			blockSection, section,
			blockInterface, []any{uint16(1), uint16(0), uint32(50)},
			blockSimple, []any{n, ack[:50]})
		got, s := run(t, file, Options{})
		var times []string
		for _, l := range strings.Split(strings.TrimSpace(got), "\n") {
			times = append(times, strings.Fields(l)[1])
			if !strings.Contains(l, "RC ACKNOWLEDGE qp=0x000016 psn=0x000010") {
				t.Errorf("%v: %s", o, l)
			}
		}
		want := []string{"1970-01-01T00:00:01.500000Z", "1970-01-01T00:16:44.294967Z", "1970-01-01T00:00:01.500000Z"}
		if len(times) != 4 || !cmp.Equal(times[:3], want) || s.RoCE != 4 || s.Packets != 5 || s.BadICRC != 0 {
			t.Errorf("%v: %v, %v", o, times, s)
		}
		head := blocks(o, blockSection, section, blockInterface, []any{uint16(1), uint16(0), uint32(0)})
		for name, damaged := range map[string][]byte{
			"interface that was never described": blocks(o, blockEnhanced, []any{uint32(1), uint32(0), uint32(0), n, n, ack}),
			"more octets than the block":         blocks(o, blockEnhanced, []any{uint32(0), uint32(0), uint32(0), n + 4, n + 4, ack}),
			"packet block too short":             blocks(o, blockEnhanced, []any{uint32(0), uint32(0)}),
			"simple block too short":             blocks(o, blockSimple, []any{}),
			"interface too short":                blocks(o, blockInterface, []any{uint16(1)}),
			"resolution too fine":                blocks(o, blockInterface, []any{uint16(1), uint16(0), uint32(0), uint16(9), uint16(1), []byte{20}}),
			"resolution of 2 too fine":           blocks(o, blockInterface, []any{uint16(1), uint16(0), uint32(0), uint16(9), uint16(1), []byte{0xc0}}),
			"length not a multiple of 4":         o.AppendUint32(o.AppendUint32(nil, 6), 33),
			"length beyond reason":               o.AppendUint32(o.AppendUint32(nil, 6), maxBlock+4),
			"length too small":                   o.AppendUint32(o.AppendUint32(nil, 6), 8),
		} {
			_, err := Capture(&bytes.Buffer{}, bytes.NewReader(append(bytes.Clone(head), damaged...)), Options{})
			if !errors.Is(err, errBlock) {
				t.Errorf("%v: %s: %v", o, name, err)
			}
		}
	}
}

// Big-endian and nanosecond files of the classic format.
func TestPcapOrders(t *testing.T) {
	ack := rocePacket(t, hosts[1], hosts[0], roce.Acknowledge, 0x16, 0x10, []byte{0x1f, 0, 0, 1})
	type order interface {
		binary.AppendByteOrder
		binary.ByteOrder
	}
	for _, o := range []order{binary.LittleEndian, binary.BigEndian} {
		for magic, fraction := range map[uint32]uint32{0xa1b2c3d4: 250000, 0xa1b23c4d: 250000000} {
			file := o.AppendUint32(nil, magic)
			file = o.AppendUint32(append(file, make([]byte, 16)...), 1)
			for _, v := range []uint32{7, fraction, uint32(len(ack)), uint32(len(ack))} {
				file = o.AppendUint32(file, v)
			}
			got, s := run(t, append(file, ack...), Options{})
			if s.RoCE != 1 || !strings.Contains(got, " 1970-01-01T00:00:07.250000Z ") {
				t.Errorf("%v %x: %s", o, magic, got)
			}
		}
	}
}

func FuzzCapture(f *testing.F) {
	all := frames(f)
	for i := range all { // small files: the fuzzer spends its time on shrinking large ones
		if one := all[i : i+1]; len(all[i]) < 130 {
			f.Add(pcap(f, 1, 1<<16, one))
			f.Add(pcapng(f, one))
		}
	}
	f.Add(pcap(f, 113, 80, all[:1]))
	f.Fuzz(func(t *testing.T, capture []byte) {
		var out bytes.Buffer
		s, err := Capture(&out, bytes.NewReader(capture), Options{Port: cremPort, JSON: true})
		if lines := strings.Count(out.String(), "\n"); err == nil && lines != s.RoCE+s.Refused+s.CREM+s.Malformed {
			t.Fatalf("%d lines, %v", lines, s)
		}
	})
}
