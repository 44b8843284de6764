// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"testing"
	"time"
)

// lost loses the first copies of some data packets.
func lost(copies int, seqs ...uint64) func(Packet, int) bool {
	return func(p Packet, n int) bool {
		for _, s := range seqs {
			if p.Kind == Data && p.Seq == s && n <= copies {
				return true
			}
		}
		return false
	}
}

func TestRepeatEachPacketOnce(t *testing.T) {
	eachPacketOnce(t, Config{Kind: SelectiveRepeat})
	eachPacketOnce(t, Config{Kind: SelectiveRepeat, NACK: true})
	eachPacketOnce(t, Config{Kind: SelectiveRepeat, Window: 16})
}

// "Every packet is acknowledged by itself, and sent again when its acknowledgement has not come within the timeout": 3 RTT each time, and only
// what was lost (SDR-RDMA Section 4.1).
func TestRepeatTimeout(t *testing.T) {
	d := newDuel(t, Config{Kind: SelectiveRepeat})
	d.lose = lost(2, 7, 40)
	d.post(100).run(time.Second)
	d.complete(1)
	for _, seq := range []uint64{7, 40} {
		at := d.copies(seq)
		if len(at) != 3 {
			t.Fatalf("packet %d left %d times", seq, len(at))
		}
		for i := 1; i < 3; i++ {
			if wait := at[i] - at[i-1]; wait < 3*testRTT || wait > 3*testRTT+5*testTick {
				t.Errorf("packet %d was sent again after %v, not 3 RTT", seq, wait)
			}
		}
	}
	if s := d.s.Stats(); s.Retransmitted != 4 || s.Timeouts != 4 || s.Needed != 100 {
		t.Errorf("%+v", s)
	}
}

// With NACKs a loss costs a round trip, a lost retransmission one more, and the last packet, which nothing follows, the timeout.
func TestRepeatNACK(t *testing.T) {
	d := newDuel(t, Config{Kind: SelectiveRepeat, NACK: true})
	d.lose = func(p Packet, n int) bool { return lost(2, 7)(p, n) || lost(1, 99)(p, n) }
	d.post(100).run(time.Second)
	d.complete(1)
	at := d.copies(7)
	if len(at) != 3 {
		t.Fatalf("packet 7 left %d times", len(at))
	}
	for i := 1; i < 3; i++ {
		if wait := at[i] - at[i-1]; wait < testRTT || wait > testRTT+10*testTick {
			t.Errorf("packet 7 was sent again after %v, not a RTT", wait)
		}
	}
	if at := d.copies(99); len(at) != 2 || at[1]-at[0] < 3*testRTT {
		t.Errorf("packet 99 left at %v", at)
	}
	if s := d.s.Stats(); s.Retransmitted != 3 {
		t.Errorf("%+v", s)
	}
}

// A NACK that comes twice, or late, does not send again what was sent a moment ago.
func TestRepeatNACKOnce(t *testing.T) {
	s := newRepeatSender(Config{Kind: SelectiveRepeat, NACK: true, Window: 64, Timeout: 3 * testRTT}, Path{MTU: testMTU, RTT: testRTT, Packet: testTick})
	s.Post(0, 10*testMTU)
	for i := range 10 {
		s.Next(time.Duration(i) * testTick)
	}
	now := testRTT + 20*testTick
	for range 3 {
		s.Handle(now, &Packet{Kind: NACK, Seq: 2, Other: 4})
	}
	var sent []uint64
	for p, ok := s.Next(now); ok; p, ok = s.Next(now) {
		sent = append(sent, p.Seq)
		s.Handle(now, &Packet{Kind: NACK, Seq: 2, Other: 4})
	}
	if len(sent) != 2 || sent[0] != 2 || sent[1] != 3 {
		t.Errorf("packets %v were sent again, not 2 and 3", sent)
	}
}

// A trimmed packet is named at once, before anything follows it.
func TestRepeatNACKOfTrimmed(t *testing.T) {
	d := newDuel(t, Config{Kind: SelectiveRepeat, NACK: true})
	d.cut = lost(1, 99)
	d.post(100).run(time.Second)
	d.complete(1)
	if at := d.copies(99); len(at) != 2 || at[1]-at[0] > testRTT+10*testTick {
		t.Errorf("packet 99 left at %v", at)
	}
}

// Lost acknowledgements cost nothing as long as later ones come: they are cumulative.
func TestRepeatLostAcknowledgements(t *testing.T) {
	d := newDuel(t, Config{Kind: SelectiveRepeat})
	d.lose = func(p Packet, _ int) bool { return p.Kind == Ack && p.Seq < 100 }
	d.post(100).run(time.Second)
	d.complete(1)
	if s := d.s.Stats(); s.Sent != 100 {
		t.Errorf("%d packets were sent for 100", s.Sent)
	}
}
