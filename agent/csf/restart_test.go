// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

func (w *world) expectRestart(name string, want bool) {
	w.t.Helper()
	closes, hellos := w.all(wire.TypeClose), w.all(wire.TypeHello)
	if !want {
		if len(closes) != 0 || w.f.Stats().Restarts != 0 {
			w.t.Errorf("%s: restarted", name)
		}
		return
	}
	if len(closes) != 1 || closes[0].close.Reason != wire.CloseRestarted || closes[0].close.FlowID != testID || len(hellos) == 0 || w.f.State() != Hello {
		w.t.Errorf("%s: %v %v, state %v", name, closes, hellos, w.f.State())
	}
}

func TestSection4_2_PSNRestart(t *testing.T) {
	const first = 0x500000
	run := func(name string, want bool, feed func(w *world)) {
		w := protected(t, fixed(1), first)
		w.burst(first+1, 64, 10*time.Microsecond)
		w.log = nil
		feed(w)
		w.expectRestart(name, want)
	}
	run("64 consecutive behind", true, func(w *world) { w.burst(0x100, 64, time.Microsecond) })
	run("63 consecutive behind", false, func(w *world) { w.burst(0x100, 63, time.Microsecond) })
	run("not consecutive", false, func(w *world) {
		for i := range 200 {
			w.write(roce.PSN(0x100 + 2*i))
		}
	})
	run("interrupted by the flow itself", false, func(w *world) {
		w.burst(0x100, 63, time.Microsecond)
		w.write(first + 65)
		w.burst(0x13f, 63, time.Microsecond)
	})
	run("64 of a retained block, again and again", false, func(w *world) {
		for range 4 {
			w.burst(first+1, 64, time.Microsecond)
		}
	})
	run("jump of 2^20", false, func(w *world) { w.write(roce.PSN(first + 64).Add(1 << 20)) })
	run("jump over 2^20", true, func(w *world) { w.write(roce.PSN(first + 66).Add(1 << 20)) })
}

// A go-back-N sender repeats what was sent before the flow was protected: no restart.
func TestSection4_2_RewindBeforeProtectionIsNoRestart(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.burst(1000, 300, 100*time.Microsecond)
	w.answerHello(gateway, nil)
	w.wait(testRTT)
	w.acceptNow(w.lastOf(wire.TypeParamUpdate).param.ConfigID)
	w.log = nil
	w.burst(1300, 10, time.Microsecond)
	w.burst(1050, 250, time.Microsecond)
	w.expectRestart("rewind", false)
	// What is acknowledged will not be repeated, except by a sender that was going back when the acknowledgement came.
	w.f.HandleAck(w.now, 1309)
	w.burst(1050, 64, time.Microsecond)
	w.expectRestart("acknowledged meanwhile", false)
	w.wait(w.f.keep())
	w.burst(1050, 64, time.Microsecond)
	w.expectRestart("acknowledged", true)
}

// A transport whose acknowledgements were lost repeats its whole window after a timeout of a second: the blocks are long gone, and it is no restart.
func TestSection4_2_RewindAfterATimeoutIsNoRestart(t *testing.T) {
	for _, acked := range []bool{false, true} {
		w := protected(t, fixed(1), 1000)
		w.burst(1001, 300, 100*time.Microsecond)
		if acked {
			w.f.HandleAck(w.now, 1100)
		}
		w.wait(time.Second)
		w.report(300, 300, nil)
		if w.f.retained.len() != 0 {
			t.Fatal("blocks are still retained: the test shows nothing")
		}
		w.log = nil
		w.burst(1101, 200, 10*time.Microsecond)
		w.expectRestart("rewind", false)
	}
}

// Without acknowledgements a new life that lies behind is recognised once nothing of the old one can be repeated.
func TestSection4_2_RestartWithoutAcknowledgements(t *testing.T) {
	w := protected(t, fixed(1), 1000)
	w.burst(1001, 300, 100*time.Microsecond)
	w.report(300, 300, nil)
	psn := roce.PSN(1301)
	for range 30 { // 30 s
		w.wait(time.Second)
		w.burst(psn, 4, 100*time.Microsecond)
		w.report(4, 4, nil)
		psn = psn.Add(4)
	}
	w.log = nil
	w.burst(1001, 64, 10*time.Microsecond)
	w.expectRestart("new life", true)
}

func TestSection4_2_RestartBeginsANewSequence(t *testing.T) {
	w := protected(t, fixed(1), 0x500000)
	w.burst(0x500001, 40, 10*time.Microsecond)
	w.burst(0x100, 64, 10*time.Microsecond)
	if w.env.Pool.InUse() != 0 {
		t.Errorf("%d octets of the old life are kept", w.env.Pool.InUse())
	}
	w.wait(testRTT)
	w.answerHello(gateway, func(m *wire.HelloAck) { m.FlowID = 99 })
	u := w.lastOf(wire.TypeParamUpdate).param
	if u.FlowID != 99 || u.Effective != 0x140 {
		t.Fatalf("%+v", u)
	}
	m := wire.ParamAck{FlowID: 99, ConfigID: u.ConfigID}
	w.wait(testRTT)
	w.f.HandleParamAck(w.now, gateway, &m, &w.acts)
	w.log = nil
	w.burst(0x140, 32, 10*time.Microsecond)
	w.expectBlocks("new life", wantBlock{0x140, 32, full(32)})
}

// A flow whose PSNs are nonsense costs one handshake a second, not one a packet.
func TestSection4_2_RestartsAreLimited(t *testing.T) {
	w := protected(t, fixed(1), 1)
	for i := range 1000 {
		w.write(roce.PSN(i * 0x300001 % (1 << 24)))
		if w.f.State() == Hello {
			w.answerHello(gateway, nil)
		}
		w.wait(time.Millisecond)
	}
	nonces := map[uint64]bool{}
	for _, m := range w.all(wire.TypeHello) {
		nonces[m.hello.Nonce] = true
	}
	if len(nonces) > 3 {
		t.Errorf("%d handshakes in a second", len(nonces))
	}
}
