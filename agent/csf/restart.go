// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

const (
	// maxJump is how far the newest PSN may jump ahead, beside what a READ request consumes, before the flow counts as restarted.
	maxJump = 1 << 20
	// restartRun is how many packets in a row with consecutive PSNs outside everything known make a restart.
	restartRun = 64
	// smallestMTU is the smallest RDMA MTU: by it a READ request consumes the most PSNs.
	smallestMTU = 256
	// repeatHorizon is how long after it was sent a packet may come again where no acknowledgement tells: the timeouts of RC queue pairs
	// reach some seconds, whatever the round trip is, and blocks are long gone then.
	repeatHorizon = 10 * time.Second
	// restartPause is the least time between two restarts that are answered by an immediate HELLO.
	restartPause = time.Second
)

// beginSequence makes psn the first PSN that the flow is known to have used.
func (f *Flow) beginSequence(pkt *roce.Packet) {
	psn := pkt.PSN()
	f.seen, f.newest, f.reach, f.floor, f.run = true, psn.Add(-1), 1, psn, 0
	f.sample.timing, f.acked = false, false
	f.mark, f.markAt = psn, f.lastSource
	f.pkey = pkt.PKey()
	f.maxSeen, f.mtu, f.mtuExact, f.reading = 0, 0, false, reading{}
}

// jumped reports whether a packet's PSN is so far ahead that the queue pair number must have been used again. The PSNs that
// the newest packet consumed, if it was a READ request, are no jump.
func (f *Flow) jumped(psn roce.PSN) bool { return psn.Sub(f.newest)-f.reach > maxJump }

// watchRestart counts packets that lie outside every retained block and behind everything that the flow may still repeat.
// 64 in a row with consecutive PSNs are a new life of the queue pair number (Section 4).
//
// What may still be repeated reaches back to the floor: PSNs that were sent before the flow was protected, or whose block
// gave way for lack of memory, lie outside every block too, and a go-back-N sender repeats them by the hundred.
func (f *Flow) watchRestart(now time.Duration, pkt *roce.Packet, acts *[]Action) {
	psn := pkt.PSN()
	f.age(now)
	if !psn.Before(f.floor) {
		f.run = 0
		return
	}
	if f.run > 0 && psn == f.runNext {
		f.run++
	} else {
		f.run = 1
	}
	f.runNext = psn.Add(1)
	if f.run == restartRun {
		f.restart(now, acts)
		f.beginSequence(pkt)
		f.learnSizes(pkt)
		f.newest = psn
	}
}

// age raises the floor with time: to what was acknowledged a while ago, because a sender may be going back over PSNs while their
// acknowledgements pass it on the way; where no acknowledgement is seen, to what was newest one to two horizons ago; and as far as comparisons
// of PSNs demand.
func (f *Flow) age(now time.Duration) {
	horizon, to := repeatHorizon, f.newest
	if f.acked {
		horizon, to = f.keep(), f.ackedTo
	}
	if now-f.markAt >= horizon {
		f.raiseFloor(f.mark)
		f.mark, f.markAt = to, now
	}
	if f.newest.Sub(f.floor) > maxSpan {
		f.raiseFloor(f.newest.Add(-maxSpan))
	}
}

// raiseFloor says that nothing before psn will be repeated: it is acknowledged, or too old.
func (f *Flow) raiseFloor(psn roce.PSN) {
	if psn.After(f.floor) {
		f.floor = psn
	}
}

// restart ends the flow towards its peer (CLOSE, reason 2) and lets the next packet begin a new one.
func (f *Flow) restart(now time.Duration, acts *[]Action) {
	f.stats.Restarts++
	if f.id == 0 {
		return // nothing to end; a HELLO under way is as good for the new life
	}
	f.sendClose(f.peer, f.id, wire.CloseRestarted, acts)
	f.unbind(WhyRestarted)
	f.helloAfter = max(now, f.restartedAt+restartPause)
	f.restartedAt = now
}
