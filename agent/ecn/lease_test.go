// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
	"time"
)

// WAN ECN, the lease of a tunnel: octet by octet, and what is refused.
func TestWANECN_LeaseLayout(t *testing.T) {
	request, answer := Lease{Nonce: 0x0102030405060708}, Lease{Answer: true, Nonce: 0x0102030405060708, For: 3500 * time.Millisecond}
	for _, c := range []struct {
		x    Lease
		size int
		want string
	}{
		{request, 24, "1d000018" + "00000000" + "0102030405060708" + "00000000" + "00000000"},
		{request, 0, "1d000014" + "00000000" + "0102030405060708" + "00000000"},
		{answer, 9000, "1d800014" + "00000000" + "0102030405060708" + "0dac0000"},
	} {
		b := c.x.Append(nil, c.size)
		if got := hex.EncodeToString(b); got != c.want {
			t.Errorf("%+v: %s, want %s", c.x, got, c.want)
		}
		if x, err := ParseLease(b); err != nil || x != c.x {
			t.Errorf("%+v: read as %+v, %v", c.x, x, err)
		}
	}
	long := Lease{Answer: true, For: MaxLease + time.Millisecond}
	padded := append(answer.Append(nil, 0), 0)
	padded[3]++
	for name, b := range map[string][]byte{
		"nothing": nil, "short": request.Append(nil, 0)[:19], "cut": request.Append(nil, 40)[:39], "longer than it says": append(request.Append(nil, 0), 0),
		"a CNP": {0x1c, 0, 0, 4}, "too long a lease": long.Append(nil, 0), "an answer with padding": padded,
	} {
		if x, err := ParseLease(b); !errors.Is(err, ErrLease) {
			t.Errorf("%s: %+v, %v", name, x, err)
		}
	}
}

func FuzzLease(f *testing.F) {
	f.Add((&Lease{Nonce: 1}).Append(nil, 100))
	f.Add((&Lease{Answer: true, Nonce: 1, For: time.Second}).Append(nil, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := ParseLease(b)
		if err != nil {
			return
		}
		again := x.Append(nil, len(b))
		if y, err := ParseLease(again); err != nil || x != y || len(again) != len(b) || !bytes.Equal(again[8:16], b[8:16]) {
			t.Errorf("%x: %+v, then %+v, %v", b, x, y, err)
		}
	})
}
