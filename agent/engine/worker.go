// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime"
	"sync/atomic"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/reporter"
	"crem.dev/crem/agent/roce"
)

const (
	batchFrames   = 256 // frames taken from one source before the next gets its turn
	batchMessages = 64
	batchTimers   = 256

	turnEvery  = 5 * time.Millisecond   // below the 10 ms after which the runtime interrupts
	minHolding = 50 * time.Microsecond  // packets are held: look again after a 64th of the round-trip time, which they then wait longer,
	maxHolding = 250 * time.Microsecond // within these
	waitActive = 500 * time.Microsecond // flows arrive: the ring has no file descriptor to wait on
	tapQuiet   = 5 * time.Millisecond   // this long without a copy: descriptors wake the worker when the next one comes
	waitIdle   = 5 * time.Millisecond   // nothing registered; half the age at which the kernel calls a worker dead
)

// worker owns a share of the flows and everything they use. Only its own goroutine touches what is not atomic.
type worker struct {
	e   *Engine
	id  int
	now time.Duration

	snap     *snapshot
	parting  []portState // ports that the newest snapshot has no more: open for a last word, until the end of the batch
	pool     *fec.Pool
	ring     packet.Ring
	inj      packet.Injector
	wait     *packet.Poller // for what is readable
	tappedAt time.Duration  // when a tap last had a copy
	turnAt   time.Duration  // when the scheduler was last called

	csfEnv  *csf.Env
	crfEnv  *crf.Env
	csfActs []csf.Action
	crfActs []crf.Action

	sending   map[roce.FlowKey]*sendFlow
	byHosts   map[roce.HostPair][]*sendFlow // whose packets are acknowledged, for ACKs
	byNonce   map[uint64]*sendFlow
	sendKnown map[peerFlow]*sendFlow
	receiving map[uint32]*recvFlow // by Flow ID, which is ours
	recvByKey map[roce.FlowKey]*recvFlow
	recvIndex []*recvFlow   // by index in the kernel's table
	ports     map[int]*port // Path Reporters, by index of the interface; empty: none is wanted
	reports   []reporter.Action
	limits    helloLimits
	cnps      *ecn.Receiver
	unknown   bucket // CLOSE answers to unknown Flow IDs
	pairs     pairing
	timers    deadlines
	holding   []*recvFlow
	holdPause time.Duration // how long the worker may sleep while these hold packets
	changed   []*recvFlow
	sweepAt   time.Duration

	frames   [batchFrames]packet.Frame
	messages [batchMessages]packet.Message
	letters  chan *letter
	saying   chan []datagram  // of the control side
	marks    chan ownMark     // of the packets that it sent into tunnels
	calls    chan func() bool // what others want to know
	call     func() bool      // the one that is being answered
	telling  *report          // the report that it makes
	reportNo uint64           // that it has begun
	measured chan measurements

	counters   [numCounters]uint64
	drops      [numDrops]uint64
	batches    uint64
	ended      ended
	endedSites siteSums // what receivers reported of flows that ended

	// Read by other goroutines.
	seenSnap atomic.Uint64
	beatAt   atomic.Int64
	realtime atomic.Bool
}

// run is the life of a worker: one batch after the other until the engine stops.
func (w *worker) run(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			w.drain()
			return
		default:
		}
		w.giveTurn()
		if !w.step() {
			w.rest()
		}
	}
}

// step is one batch. It reports whether more waits than a batch takes.
//
//  1. obey the newest configuration
//  2. copies of what left and of ACKs (tap)
//  3. packets of protected flows (ring)
//  4. messages (sockets, other workers), marks by the own queue
//  5. counters of the uplinks and what was measured in tunnels (Path Reporter), deadlines
//  6. send and inject what came of it, give memory back
//  7. hand flows back to the kernel whose order is whole again
//  8. heartbeat
func (w *worker) step() (busy bool) {
	w.now = w.e.now()
	w.obey()
	busy = w.readTaps()
	busy = w.readRing() || busy
	busy = w.readMessages() || busy
	w.takeMarks()
	w.takeCounters()
	w.takeMeasurements()
	w.pollTimers()
	w.flush()
	w.obeyed()
	w.handBack()
	w.batches++
	w.e.holder.Beat(w.id, w.e.now())
	w.beatAt.Store(int64(w.now))
	w.speak()
	return w.serveCalls() || busy
}

// obeyed tells that everything this worker does follows the present configuration.
func (w *worker) obeyed() {
	if w.seenSnap.Load() == w.snap.number {
		return
	}
	w.seenSnap.Store(w.snap.number)
	if w.e.opts.Changed != nil {
		w.e.opts.Changed()
	}
}

// giveTurn lets the runtime's scheduler run now and then. A goroutine that it has not seen for 10 ms is interrupted by force, and the runtime's monitor
// then looks for more of the kind every 20 us, which costs a quarter of a core.
func (w *worker) giveTurn() {
	if w.now-w.turnAt >= turnEvery {
		w.turnAt = w.now
		runtime.Gosched()
	}
}

// rest sleeps until there may be something to do. While packets of flows pass the worker looks at everything twice a millisecond anyhow, and being woken
// for each REPAIR or batch of copies would cost more than they do; else descriptors wake it.
func (w *worker) rest() {
	d := w.patience()
	if d <= waitActive {
		packet.Nap(d)
		return
	}
	w.wait.Wait(d)
}

// patience is how long the worker may sleep.
func (w *worker) patience() time.Duration {
	d := waitIdle
	switch {
	case len(w.holding) > 0:
		d = w.holdPause
	case len(w.receiving) > 0, w.now-w.tappedAt < tapQuiet:
		d = waitActive
	}
	if next := w.timers.next(); next != roce.Never {
		d = min(d, max(0, next-w.e.now()))
	}
	return d
}

// flush sends and injects what the batch produced. Only then may frames be given back and cells be used again: actions alias them.
func (w *worker) flush() {
	for i := range w.snap.ports {
		w.snap.ports[i].sockets[w.id].Flush()
	}
	for i := range w.parting {
		w.parting[i].sockets[w.id].Flush()
	}
	w.parting = nil
	w.inj.Flush()
	w.ring.Release()
	for i := range w.snap.uplinks {
		w.snap.uplinks[i].taps[w.id].Release()
	}
	w.pool.Reclaim()
}

func (w *worker) pollTimers() {
	for n := 0; n < batchTimers && w.timers.next() <= w.now; n++ {
		t := w.timers.heap[0]
		t.poll.poll(w.now)
		if t.place >= 0 { // still alive
			w.timers.set(t, t.poll.nextDeadline())
		}
	}
	if w.now >= w.sweepAt {
		w.sweepAt = w.now + sweepEvery
		w.sweep()
	}
}

// serveCalls answers what others ask, each call as many times as it wants to go on, once a batch. It reports whether one does.
func (w *worker) serveCalls() (more bool) {
	for {
		if w.call == nil {
			select {
			case w.call = <-w.calls:
			default:
				return false
			}
		}
		if !w.call() {
			return true
		}
		w.call = nil
	}
}

// drain ends the worker without losing a packet: held packets leave in order, then flows pass by themselves (the engine has set the bypass, so the
// kernel holds nothing new). Nothing is said to peers: a restarted agent asks again, and what it was asked before ends with its first answer.
func (w *worker) drain() {
	w.now = w.e.now()
	for w.readRing() {
		w.flush()
	}
	for _, r := range w.receiving {
		w.releaseHeld(r)
	}
	w.flush()
	for w.readRing() { // what the kernel held before it saw the bypass; the machines are closed and pass it on
		w.flush()
	}
	w.flush()
	for _, r := range w.receiving {
		w.e.dropFromKernel(r)
	}
}
