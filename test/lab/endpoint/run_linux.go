// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/lab/raw"
)

const (
	receiveBatch = 64
	// quiet is how long nothing must have come before the thread waits for a frame to wake it instead of napping.
	quiet   = 20 * time.Millisecond
	patient = 10 * time.Millisecond
)

// Run is the NIC's loop. A requester ends by itself, a responder when told to.
func (h *Host) Run(stop <-chan os.Signal) *Result {
	defer raw.Hardware()()
	epoch := time.Now()
	h.meter = newMeter(h.o)
	busy, last := time.Duration(0), time.Duration(0)
	for {
		select {
		case <-stop:
			return h.result(time.Since(epoch), "stopped")
		default:
		}
		wall := time.Now()
		now := wall.Sub(epoch)
		if last > h.o.Warmup {
			h.stall = max(h.stall, now-last-patient)
		}
		last = now
		n := h.receive(wall, now)
		if why := h.post(now); why != "" {
			return h.result(now, why)
		}
		n += h.transmit(now)
		if n > 0 {
			busy = now
		}
		if n < receiveBatch {
			h.wait(time.Since(epoch), now-busy < quiet)
		}
	}
}

// receive gives the queue pairs what has arrived.
func (h *Host) receive(wall time.Time, now time.Duration) (n int) {
	for ; n < receiveBatch; n++ {
		f, ok := h.ring.Next(wall)
		if !ok {
			break
		}
		if p, why := h.reads.Parse(f.Data); why != roce.OK {
			h.refused[why.String()]++
		} else if i := int(p.QPN()) - int(h.first); i < 0 || i >= len(h.qps) {
			h.refused["unknown queue pair"]++
		} else {
			h.qps[i].HandlePacket(now, &p)
		}
		h.ring.Release(f.Slot)
	}
	return n
}

// post keeps the send queues full while the requester measures, and says when it is over.
func (h *Host) post(now time.Duration) (over string) {
	if !h.o.Requester {
		return ""
	}
	outstanding := 0
	for i, q := range h.qps {
		h.meter.completed(q)
		if !h.meter.over(now) {
			for q.Post(now, h.meter.op(i), h.o.Size) {
				h.meter.posted[i]++
			}
		}
		if q.Err() != "" {
			return "connection failed"
		}
		outstanding += q.Outstanding()
	}
	return h.meter.tick(now, h.qps, outstanding)
}

// transmit sends what the queue pairs have to send.
func (h *Host) transmit(now time.Duration) (n int) {
	for _, q := range h.qps {
		h.batch.Reset()
		q.Poll(now, h.batch)
		for _, f := range h.batch.Frames() {
			h.send.Queue(f)
		}
		h.send.Flush()
		n += len(h.batch.Frames())
	}
	return n
}

// wait sleeps until a queue pair wants to be polled. While there is traffic it naps, and takes and sends what has piled up in one batch: a wake-up for
// each packet would cost more than the packet. A pacer makes up for a nap.
func (h *Host) wait(now time.Duration, traffic bool) {
	if traffic {
		ts := unix.NsecToTimespec(int64(h.o.Nap))
		_ = unix.Nanosleep(&ts, nil)
		return
	}
	pause := patient
	for _, q := range h.qps {
		if d := q.NextDeadline(); d != roce.Never {
			pause = min(pause, d-now)
		}
	}
	if pause <= 0 {
		return
	}
	ts := unix.NsecToTimespec(int64(pause))
	fds := [1]unix.PollFd{{Fd: int32(h.ring.FD()), Events: unix.POLLIN}}
	_, _ = unix.Ppoll(fds[:], &ts, nil)
}
