// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"flag"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/rc"
)

func TestArgsAreWhatRegisterReads(t *testing.T) {
	o := DefaultOptions()
	o.Requester, o.Device, o.Op, o.Connections, o.Size = true, "eth7", Mixed, 3, 12345
	o.Local, o.Remote, o.NextHop = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), "02:00:00:00:00:01"
	o.Config = rc.Config{MTU: 1024, TOS: 0x6a, Window: 77, Rate: 99, Timeout: time.Second, Retries: -1, Depth: 5, Reads: 2, Coalesce: true, Seed: 1 << 60}
	o.Transport, o.Multipath = roce.MRC, Multipath{Port: 4795, SACK: 0xe0, ResponseACK: 0xe1, ResponseSACK: 0xe2, RetransmissionBit: -1, Paths: 3, RTT: time.Second}
	o.Warmup, o.Duration, o.Drain, o.Nap = time.Millisecond, time.Minute, time.Hour, time.Microsecond
	got := DefaultOptions()
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	got.Register(fs)
	if err := fs.Parse(o.Args()); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(o, got) {
		t.Errorf("\n%+v became\n%+v", o, got)
	}
}

func TestEndsAgreeOnTheConnection(t *testing.T) {
	o := DefaultOptions()
	o.Local, o.Remote, o.Requester = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), true
	other := o
	other.Local, other.Remote, other.Requester = o.Remote, o.Local, false
	seen := map[uint32]bool{}
	for i := range 10 {
		a, b := o.connection(i, [6]byte{1}, [6]byte{2}), other.connection(i, [6]byte{2}, [6]byte{1})
		if !reflect.DeepEqual(a.Reverse(), b) {
			t.Fatalf("connection %d: %+v and %+v", i, a, b)
		}
		seen[uint32(a.Local.QPN)<<8^uint32(a.Local.PSN)] = true
	}
	if len(seen) != 10 {
		t.Error("connections are not distinct")
	}
}

// Each transport has the operations that it has, and the others are refused before anything is opened.
func TestOperationsOfTransports(t *testing.T) {
	for _, transport := range roce.AllTransports() {
		for name, op := range opNames {
			o := DefaultOptions()
			o.Device, o.Local, o.Remote = "eth7", netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
			o.Transport, o.Op = transport, op
			want := transport == roce.RoCEv2 || op == rc.Write || op == rc.Read && transport == roce.VeRoCE
			if err := o.validate(); (err == nil) != want {
				t.Errorf("%v, %s: %v", transport, name, err)
			}
		}
	}
}
