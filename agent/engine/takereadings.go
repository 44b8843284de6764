// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/reporter"
)

// readingsTaken bounds the messages of a tunnel in a period, readingsWaiting those that wait.
const readingsTaken, readingsWaiting = 16, 64

// readings are a message on its way from a worker.
type readings struct {
	ends packet.Ends   // of the tunnel, seen from here
	at   time.Duration // when it came, Unix time
	data []byte
}

// readings gives a message of the other end of a tunnel to the control side.
func (w *worker) readings(d *Domain, m *packet.Message) {
	x := readings{ends: packet.Ends{Src: m.To, Dst: m.From.Addr()}, at: w.e.measuring.unix()}
	if !d.WAN.Measure || !w.snap.ends[x.ends] {
		w.e.measuring.refuse(refusedTunnel)
		return
	}
	if len(w.e.measuring.inbox) < cap(w.e.measuring.inbox) {
		x.data = bytes.Clone(m.Data)
		select {
		case w.e.measuring.inbox <- x:
			return
		default:
		}
	}
	w.e.measuring.refuse(refusedBusy)
}

// takeReadings compares what the other end of a tunnel counted with what this one did, and gives what comes of it to the workers of the flows.
func (e *Engine) takeReadings(r readings) {
	m := &e.measuring
	msg, err := ecn.ParseReadings(r.data)
	if err != nil {
		m.refuse(refusedMalformed)
		return
	}
	by, why, ok := e.tunnels.admit(e, &r, time.Duration(msg.Time)*time.Microsecond)
	if !ok {
		m.refuse(why)
		return
	}
	m.taken.Add(1)
	found, excess := m.compareAll(&by, &msg)
	e.noteEntered(r.ends, found, excess)
	_, ifindex := by.kernel.Leased(by.tunnel)
	e.report(found, ifindex)
}

// believed is a tunnel whose other end may say what came out of it.
type believed struct {
	tunnel bpf.Tunnel
	kernel Tunnels
	from   uint32 // the first period that is whole
}

// admit says whether a message comes from the other end of a tunnel that is measured and open, not too often, and with a clock that fits; else why
// it is refused.
func (t *tunnels) admit(e *Engine, r *readings, sent time.Duration) (b believed, why refusal, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.byEnds[r.ends]
	if x == nil || t.kernel == nil || !x.measured.on || x.until <= e.now() {
		return b, refusedTunnel, false
	}
	y := &x.measured
	if !y.hear(e.measuring.periods.At(r.at)) {
		return b, refusedLimit, false
	}
	if apart, ok := y.apart(sent, r.at); !ok {
		y.out.set(e, x, faultClocks(apart))
		return b, refusedClocks, false
	}
	return believed{x.Tunnel, t.kernel, y.from}, 0, true
}

// compareAll returns what is known of the flows of a message now, and whether more came of any than went in.
func (m *measuring) compareAll(by *believed, msg *ecn.Readings) (found []reporter.Measurement, excess bool) {
	for i := range msg.List {
		x, why := m.compare(by, msg.Period, &msg.List[i])
		if why == reporter.DropNone {
			found = append(found, x)
		}
		excess = excess || why == reporter.DropExcess
	}
	return found, excess
}

// compare is for one flow. The counters are read before the clock: what is over then was over when they were read.
func (m *measuring) compare(by *believed, period uint32, down *ecn.Reading) (reporter.Measurement, reporter.DropReason) {
	k := down.Flow
	counts, known, err := by.kernel.EnteredOf(by.tunnel, bpf.TunnelFlow{Src: k.Src, Dst: k.Dst, QPN: k.Label})
	switch {
	case err != nil || !known:
		return reporter.Measurement{}, m.drop(reporter.DropUnknownFlow)
	case int32(period-by.from) < 0:
		return reporter.Measurement{}, m.drop(reporter.DropPartial)
	}
	up, why := counts.Reading(k, m.present()-1, period)
	if why != reporter.DropNone {
		return reporter.Measurement{}, m.drop(why)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of.Compare(up, reporter.Reading{Flow: k, Period: period, Packets: down.Packets, Sum: down.Sum})
}

// noteEntered adds what was measured to the totals of a tunnel, and notes what is wrong with it.
func (e *Engine) noteEntered(ends packet.Ends, found []reporter.Measurement, excess bool) {
	e.tunnels.mu.Lock()
	defer e.tunnels.mu.Unlock()
	x := e.tunnels.byEnds[ends]
	if x == nil {
		return
	}
	text := ""
	if excess {
		text = faultExcess
	}
	x.measured.out.set(e, x, text)
	for i := range found {
		x.measured.packets += uint64(found[i].Entered)
		x.measured.lost += uint64(found[i].Lost)
		x.measured.delay.add(&found[i])
	}
}
