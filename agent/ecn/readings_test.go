// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"encoding/hex"
	"errors"
	"reflect"
	"testing"
	"time"
)

// RFC 9341, readings between two gateways: octet by octet, and what is refused.
func TestRFC9341_ReadingsLayout(t *testing.T) {
	x := Readings{Period: 0x0a0b0c0d, Time: 0x0102030405060708, List: []Reading{{Flow: flow4, Packets: 0x11121314, Sum: 0x2122232425262728}, {Flow: flow4, Sum: -1}}}
	head := "1e000048" + "00000000" + "0a0b0c0d" + "04000000" + "0102030405060708"
	want := head + "0a010001" + "0a020001" + "00123456" + "11121314" + "2122232425262728" + "0a010001" + "0a020001" + "00123456" + "00000000" + "ffffffffffffffff"
	b := x.Append(nil)
	if got := hex.EncodeToString(b); got != want {
		t.Fatalf("\n%s, want\n%s", got, want)
	}
	for _, x := range []Readings{x, {Period: 1, Time: 2, List: []Reading{{Flow: flow6, Packets: 3, Sum: 4 * time.Second}}}} {
		b := x.Append(nil)
		if got, err := ParseReadings(b); err != nil || !reflect.DeepEqual(got, x) {
			t.Fatalf("%+v, %v", got, err)
		}
		for n := range b {
			if _, err := ParseReadings(b[:n]); !errors.Is(err, ErrReadings) {
				t.Fatalf("%d octets of %d were taken", n, len(b))
			}
		}
		if _, err := ParseReadings(append(b, 0)); err == nil {
			t.Fatal("an octet too many was taken")
		}
	}
	change := func(at int, to byte) []byte {
		one := Readings{List: x.List[:1]}
		b := one.Append(nil)
		b[at] = to
		return b
	}
	for name, b := range map[string][]byte{
		"a LEASE": change(0, 0x1d), "version 2": change(0, 0x2e), "IPv6 of that length": change(12, 6), "an unknown AF": change(12, 5),
		"no flow": append(append([]byte{}, b[:3]...), append([]byte{readingsHead}, b[4:readingsHead]...)...), "part of a flow": change(3, 0x2f)[:0x2f],
	} {
		if x, err := ParseReadings(b); !errors.Is(err, ErrReadings) {
			t.Errorf("%s: %+v, %v", name, x, err)
		}
	}
}

// As many flows as are said to fit do, and no more.
func TestRFC9341_MostReadings(t *testing.T) {
	for _, flow := range []Flow{flow4, flow6} {
		var x Readings
		for range MostReadings(1232, flow.Src.Is4()) {
			x.List = append(x.List, Reading{Flow: flow})
		}
		fits := len(x.Append(nil))
		x.List = append(x.List, Reading{Flow: flow})
		if over := len(x.Append(nil)); fits > 1232 || over <= 1232 {
			t.Errorf("%v: %d octets, one more is %d", flow, fits, over)
		}
	}
}

func FuzzReadings(f *testing.F) {
	for _, flow := range []Flow{flow4, flow6} {
		x := Readings{Period: 1, Time: 2, List: []Reading{{Flow: flow, Packets: 3, Sum: 4}, {Flow: flow, Packets: 5, Sum: -6}}}
		f.Add(x.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := ParseReadings(b)
		if err != nil {
			return
		}
		again := x.Append(nil)
		if y, err := ParseReadings(again); err != nil || !reflect.DeepEqual(x, y) || len(again) != len(b) {
			t.Fatalf("%+v became %+v, %v", x, y, err)
		}
	})
}
