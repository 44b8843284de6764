// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// reads gives n READ requests of length octets, one behind the other at an RDMA MTU, and returns the PSN behind them.
func (w *world) reads(psn roce.PSN, n, length, mtu int) roce.PSN {
	w.t.Helper()
	for range n {
		w.give(readRequest(w.t, psn, length))
		psn = psn.Add(max(1, (length+mtu-1)/mtu))
	}
	return psn
}

// A flow that only reads tells its RDMA MTU by the PSNs between its requests, before its HELLO.
func TestSection5_1_ReadersTellTheirMTU(t *testing.T) {
	for _, mtu := range rdmaMTUs {
		for _, length := range []int{2*4096 + 1, 1 << 16, 1<<20 + 5} {
			w := newWorld(t, defaults())
			w.reads(7, 1, length, mtu)
			if n := len(w.all(wire.TypeHello)); n != 0 {
				t.Fatalf("%d HELLOs before the RDMA MTU can be known", n)
			}
			w.reads(roce.PSN(7+(length+mtu-1)/mtu), 1, length, mtu)
			if got := int(w.lastOf(wire.TypeHello).hello.MTU); got != mtu {
				t.Errorf("READs of %d at %d: HELLO says %d", length, mtu, got)
			}
		}
	}
}

// A flow whose HELLO said another RDMA MTU says it again when two READ requests in a row have shown it; one alone may have had a lost packet behind it.
func TestSection5_1_WrongMTUIsCorrected(t *testing.T) {
	w := protected(t, defaults(), 1) // WRITEs of 1,024 octets
	w.f.mtu, w.f.mtuExact, w.f.announced = 512, false, 512
	psn := w.reads(2, 2, 1<<16, 4096)
	if n := len(w.all(wire.TypeClose)); n != 0 {
		t.Fatal("one observation is no proof")
	}
	psn = w.reads(psn, 1, 1<<16, 4096)
	if c := w.lastOf(wire.TypeClose).close; c.Reason != wire.CloseRestarted {
		t.Fatalf("%+v", c)
	}
	if got := w.lastOf(wire.TypeHello).hello.MTU; got != 4096 {
		t.Fatalf("HELLO says %d", got)
	}
	w.log = nil
	w.reads(psn, 50, 1<<16, 4096)
	if n := len(w.all(wire.TypeClose)); n != 0 {
		t.Errorf("%d more CLOSEs", n)
	}
}

// What fits several RDMA MTUs, or none, tells nothing.
func TestSection5_1_ShortReadsTellNothing(t *testing.T) {
	for _, c := range []struct{ length, next, want int }{
		{256, 1, 0}, {300, 1, 0}, {300, 2, 256}, {1000, 1, 0}, {4096, 1, 4096}, {1 << 16, 17, 0}, {1 << 16, 1, 0}, {1 << 16, 32, 2048},
	} {
		var r reading
		r.next(readRequest(t, 1, c.length))
		r.next(packet(t, roce.SendOnly, roce.PSN(1+c.next), 100, 0))
		if r.mtu != c.want || r.known() {
			t.Errorf("%d octets, %d PSNs: %d, want %d", c.length, c.next, r.mtu, c.want)
		}
	}
}

// The queue pair number is used again with another RDMA MTU: what the life before showed is forgotten.
func TestSection5_1_NewLifeHasItsOwnMTU(t *testing.T) {
	w := protected(t, defaults(), 1)
	w.reads(2, 4, 1<<16, 4096)
	w.wait(2 * restartPause)
	w.log = nil
	psn := w.reads(1<<22, 2, 1<<16, 1024)
	if got := w.lastOf(wire.TypeHello).hello.MTU; got != 1024 && got != leastGuess {
		t.Errorf("HELLO of the new life says %d", got)
	}
	w.reads(psn, 2, 1<<16, 1024)
	if got := w.f.announcedMTU(); got != 1024 {
		t.Errorf("RDMA MTU %d", got)
	}
}

// Endpoints that show another RDMA MTU all the time make the flow shake hands once a second and no more.
func TestSection5_1_CorrectionsAreRare(t *testing.T) {
	w := protected(t, defaults(), 1)
	w.f.mtu, w.f.mtuExact, w.f.announced = 512, false, 512
	psn := roce.PSN(2)
	w.log = nil
	for i := range 500 {
		psn = w.reads(psn, 3, 1<<16, rdmaMTUs[2+i%3])
		if w.f.ID() == 0 && w.f.Nonce() != 0 {
			w.answerHello(gateway, nil)
		}
		w.wait(2 * time.Millisecond)
	}
	if n := len(w.all(wire.TypeClose)); n < 1 || n > 3 {
		t.Errorf("%d CLOSEs in a second", n)
	}
}
