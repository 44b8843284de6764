// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

func TestSection5_1_HelloAck(t *testing.T) {
	w := newWorld(t, with(func(p *Params) { p.MaxK, p.MaxM, p.MaxT, p.MaxOpenBlocks = 64, 9, 4202, 77 }))
	want := wire.HelloAck{
		FlowID: testID, Kind: wire.KindRoCEv2, AF: 4, Schemes: 7, MaxK: 64, MaxM: 9, MaxT: 4202, MTU: testMTU,
		Extensions: wire.ExtDigest, Nonce: testNonce, MaxOpenBlocks: 77,
	}
	if len(w.msgs) != 1 || w.msgs[0].ack != want {
		t.Fatalf("got %+v", w.msgs)
	}
	// Rule 3: the same nonce, the same answer; HELLO_ACK is never larger than HELLO.
	w.now += time.Millisecond
	if !w.f.HandleHello(w.now, &w.hello, &w.acts) {
		t.Fatal("repeated HELLO refused")
	}
	if m := w.take(); len(m) != 1 || m[0].ack != want {
		t.Fatalf("repeated HELLO answered by %+v", m)
	}
	other := w.hello
	other.Nonce++
	if w.f.HandleHello(w.now, &other, &w.acts) || len(w.acts) != 0 {
		t.Error("a HELLO with another nonce is not for this machine")
	}
	other = w.hello
	other.Flow.Label++
	if w.f.HandleHello(w.now, &other, &w.acts) || len(w.acts) != 0 {
		t.Error("a HELLO for another flow is not for this machine")
	}
}

func TestSection6_4_ExtensionsEchoedOnlyIfOfferedAndWanted(t *testing.T) {
	for _, c := range []struct {
		offered uint16
		wanted  bool
		want    uint16
	}{{0, true, 0}, {wire.ExtDigest, false, 0}, {wire.ExtDigest, true, wire.ExtDigest}, {wire.ExtDetail, false, wire.ExtDetail},
		{0xffff, true, wire.ExtDigest | wire.ExtDetail}} {
		w := newWorld(t, func(w *world) { w.hello.Extensions, w.p.Digest = c.offered, c.wanted })
		if got := w.msgs[0].ack.Extensions; got != c.want {
			t.Errorf("offered %#x, wanted %v: echoed %#x", c.offered, c.wanted, got)
		}
	}
}

// Source Copy and Cauchy are always there, whatever the operator names (Section 4.3).
func TestSection4_3_SchemesAnnounced(t *testing.T) {
	w := newWorld(t, with(func(p *Params) { p.Schemes = 0 }))
	if got := w.msgs[0].ack.Schemes; got != 3 {
		t.Errorf("announced %#x", got)
	}
}

func TestSection5_1_IdleFlowIsClosed(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(1, 4)
	w.wait(29 * time.Second)
	if w.f.State() != Protecting {
		t.Fatal("closed too early")
	}
	w.wait(1100 * time.Millisecond)
	last := w.msgs[len(w.msgs)-1]
	if w.f.State() != Closed || last.typ != wire.TypeClose || last.close.Reason != wire.CloseIdle {
		t.Fatalf("after 30 s: %v, %+v", w.f.State(), last)
	}
	if w.f.NextDeadline() != roce.Never {
		t.Error("a closed flow has nothing to do")
	}
}

func TestSection5_1_CloseReleasesWhatIsHeld(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"by the peer": func(w *world) { w.f.HandleClose(w.now, &wire.Close{FlowID: testID}, &w.acts) },
		"by us":       func(w *world) { w.f.Close(w.now, wire.CloseAdministrative, &w.acts) },
	} {
		t.Run(name, func(t *testing.T) {
			w := configured(t, fec.Cauchy, 8, 2)
			w.packets(1, 8, 3)
			if len(w.out) != 2 {
				t.Fatalf("delivered %v", w.psns())
			}
			end(w)
			msgs := w.take()
			if got := w.psns(); len(got) != 7 || w.f.State() != Closed {
				t.Errorf("delivered %v, %v", got, w.f.State())
			}
			if name == "by us" != (len(msgs) == 1 && msgs[0].close.Reason == wire.CloseAdministrative) {
				t.Errorf("sent %+v", msgs)
			}
			if w.k.hold {
				t.Error("a closed flow is not handed back")
			}
			w.noHand, w.k.hold = true, true
			w.packets(9, 1)
			if next, ok := w.f.Idle(); !ok || next != 10 {
				t.Errorf("a closed flow is handed back at %v, %v", next, ok)
			}
			if got := w.psns(); len(got) != 8 {
				t.Errorf("a packet held for a closed flow was not passed on: %v", got)
			}
			if w.env.Pool.InUse() != 0 {
				t.Errorf("%d octets still in use", w.env.Pool.InUse())
			}
		})
	}
}

// A flow of which nothing comes but HELLO ends too: its sender may have died, and would leave it behind for ever.
func TestSection5_1_FlowOfAHelloAloneIsClosed(t *testing.T) {
	w := newWorld(t)
	w.wait(idleTimeout)
	if w.f.State() != Closed {
		t.Errorf("%v after %v without a packet", w.f.State(), idleTimeout)
	}
}

// The machine of a HELLO with another nonce goes on where the one stands that it replaces: the kernel holds for it, and may be told what to expect before
// another packet comes.
func TestSection5_1_AnotherMachineSucceeds(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.noHand = true
	w.packets(1, 8, 3)
	w.f.Close(w.now, wire.CloseIdle, &w.acts)
	w.take()
	old := w.f
	w.f = New(w.now, testID+1, &w.hello, gateway, local, &w.p, w.env)
	if _, ok := w.f.Idle(); ok {
		t.Error("idle before anything is known")
	}
	w.f.Succeed(old)
	if next, ok := w.f.Idle(); !ok || next != 9 {
		t.Errorf("expects %v, %v", next, ok)
	}
	w.packets(9, 2)
	if got := w.psns(); len(got) != 9 || got[8] != 10 {
		t.Errorf("delivered %v", got)
	}
}
