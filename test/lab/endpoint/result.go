// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"slices"
	"time"

	"crem.dev/crem/sim/rc"
)

// Result is what crem-rc prints. Figures without "total" are of the measurement alone, without the time before and after it.
type Result struct {
	Role           string            `json:"role"`
	Op             string            `json:"op"`
	Ended          string            `json:"ended"`
	Seconds        float64           `json:"seconds"`
	GoodputBps     float64           `json:"goodput_bps"` // payload acknowledged (READ: placed)
	Sent           uint64            `json:"sent"`        // data packets; requests of READs are in total
	Needed         uint64            `json:"needed"`
	SentOverNeeded float64           `json:"sent_over_needed"`
	NAKs           uint64            `json:"naks"` // PSN sequence errors received, and gaps in READ responses
	Timeouts       uint64            `json:"timeouts"`
	Messages       int               `json:"messages"` // completed of those that were posted in the measurement
	Unfinished     int               `json:"unfinished"`
	MCT            Percentiles       `json:"mct_ms"` // completion times of them, from post to completion
	Corrupt        uint64            `json:"corrupt"`
	CorruptOctets  uint64            `json:"corrupt_octets"` // with a last look at all memory
	Failed         int               `json:"failed"`         // connections in error
	Total          []*rc.Stats       `json:"total"`          // of each connection
	Refused        map[string]uint64 `json:"refused,omitempty"`
	RingDropped    uint64            `json:"ring_dropped"` // these two are the host's fault: the measurement is void if they are many
	SendDropped    uint64            `json:"send_dropped"`
	StallMs        float64           `json:"stall_ms"` // the longest time for which the machine let the endpoint wait, after the warm-up
}

// Percentiles of completion times, in milliseconds.
type Percentiles struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Mean float64 `json:"mean"`
	Max  float64 `json:"max"`
}

// snapshot is the sum over connections at one moment.
type snapshot struct {
	at                                  time.Duration
	acked, sent, needed, naks, timeouts uint64
}

func sum(now time.Duration, qps []queuePair) snapshot {
	s := snapshot{at: now}
	for _, q := range qps {
		r := &q.Stats().Requester
		s.acked += r.AckedOctets
		s.sent += r.Sent
		s.needed += r.Needed
		s.naks += r.NAKs + r.Implied
		s.timeouts += r.Timeouts
	}
	return s
}

// meter takes the measurement of a requester.
type meter struct {
	o          *Options
	posted     []uint64
	begin, end time.Duration
	from, to   snapshot
	times      []time.Duration
	scratch    []rc.Completion
	unfinished int
}

func newMeter(o *Options) meter {
	return meter{o: o, posted: make([]uint64, o.Connections), begin: o.Warmup, end: o.Warmup + o.Duration, times: make([]time.Duration, 0, 1<<16)}
}

func (m *meter) op(qp int) rc.Op {
	if m.o.Op == Mixed {
		return rc.Op(m.posted[qp] % 3)
	}
	return m.o.Op
}

func (m *meter) over(now time.Duration) bool { return now >= m.end }

// completed notes the messages of the measurement.
func (m *meter) completed(q queuePair) {
	m.scratch = q.Completions(m.scratch[:0])
	for _, c := range m.scratch {
		if c.Posted >= m.begin {
			m.times = append(m.times, c.Completed-c.Posted)
		}
	}
}

// tick takes the sums when the measurement begins and ends, and says why it is over.
func (m *meter) tick(now time.Duration, qps []queuePair, outstanding int) (over string) {
	if m.from.at == 0 && now >= m.begin {
		m.from = sum(now, qps)
		m.from.at = max(m.from.at, 1)
	}
	if !m.over(now) {
		return ""
	}
	if m.to.at == 0 {
		m.to = sum(now, qps)
	}
	m.unfinished = outstanding
	switch {
	case outstanding == 0:
		return "complete"
	case now >= m.end+m.o.Drain:
		return "messages outstanding"
	}
	return ""
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (m *meter) percentiles() (p Percentiles) {
	if len(m.times) == 0 {
		return p
	}
	slices.Sort(m.times)
	at := func(q float64) float64 {
		return milliseconds(m.times[min(len(m.times)-1, int(q*float64(len(m.times))))])
	}
	total := time.Duration(0)
	for _, t := range m.times {
		total += t
	}
	return Percentiles{P50: at(0.50), P99: at(0.99), Mean: milliseconds(total) / float64(len(m.times)), Max: at(1)}
}

func (h *Host) result(now time.Duration, ended string) *Result {
	m := &h.meter
	if m.from.at == 0 {
		m.from = snapshot{at: 1}
	}
	if m.to.at == 0 {
		m.to = sum(now, h.qps)
	}
	r := &Result{
		Role: responder, Op: opName(h.o.Op), Ended: ended, Refused: h.refused, Seconds: (m.to.at - m.from.at).Seconds(),
		RingDropped: h.ring.Dropped(), SendDropped: h.send.Dropped, Messages: len(m.times), Unfinished: m.unfinished, MCT: m.percentiles(),
		StallMs: milliseconds(h.stall),
		NAKs:    m.to.naks - m.from.naks, Timeouts: m.to.timeouts - m.from.timeouts, Sent: m.to.sent - m.from.sent, Needed: m.to.needed - m.from.needed,
	}
	if r.Seconds > 0 {
		r.GoodputBps = float64(m.to.acked-m.from.acked) * 8 / r.Seconds
	}
	if h.o.Requester {
		r.Role = requester
	}
	for _, q := range h.qps {
		h.add(r, q)
	}
	if r.Needed > 0 {
		r.SentOverNeeded = float64(r.Sent) / float64(r.Needed)
	}
	return r
}

// add sums up what is reported for the whole run of a connection.
func (h *Host) add(r *Result, q queuePair) {
	s := q.Stats()
	r.Total = append(r.Total, s)
	r.Corrupt += s.Requester.CorruptMessages + s.Responder.CorruptMessages + s.Responder.ProtocolErrors
	r.CorruptOctets += max(s.Requester.CorruptOctets+s.Responder.CorruptOctets, uint64(q.Audit()))
	if q.Err() != "" {
		r.Failed++
	}
	if !h.o.Requester {
		r.Sent += s.Responder.ResponsesSent
		r.Needed += s.Responder.ResponsesNeeded
	}
}
