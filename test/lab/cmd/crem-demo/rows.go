// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"crem.dev/crem/test/lab/trial"
)

// row is the result of one transfer, an element of the JSON.
type row struct {
	Scenario           string   `json:"scenario"`
	RTTMs              float64  `json:"rtt_ms"`
	RateBps            int64    `json:"rate_bps"`
	Loss               float64  `json:"loss"`
	LossModel          string   `json:"loss_model"`
	Protected          bool     `json:"protected"`
	GoodputBps         float64  `json:"goodput_bps"`
	LosslessGoodputBps float64  `json:"lossless_goodput_bps"`
	GoodputRatio       float64  `json:"goodput_ratio"`
	SentOverNeeded     float64  `json:"sent_over_needed"`
	MCTP50Ms           float64  `json:"mct_p50_ms"`
	MCTP99Ms           float64  `json:"mct_p99_ms"`
	RepairOverhead     float64  `json:"repair_overhead"` // CREM octets over RoCEv2 data octets, as they enter the link
	Restored           uint64   `json:"restored"`
	NAKs               uint64   `json:"naks"`
	Timeouts           uint64   `json:"timeouts"`
	Corrupt            uint64   `json:"corrupt"`
	Messages           int      `json:"messages"`
	Unfinished         int      `json:"unfinished"`
	LostOnPath         uint64   `json:"lost_on_path"` // data packets, in the direction of the data
	QueueMaxOctets     int64    `json:"queue_max_octets"`
	Disturbed          string   `json:"disturbed,omitempty"` // what the machine did to the measurement
	Profile            *profile `json:"profile,omitempty"`
	name               string
	burst              bool
}

func newRow(s *scenario, l *link, o *trial.Outcome, lossless float64) row {
	q := &o.Requester
	r := row{
		Scenario: s.name, RTTMs: l.rtt.Seconds() * 1000, RateBps: l.rate, Loss: s.loss, LossModel: s.model(), Protected: s.profile != nil,
		GoodputBps: q.GoodputBps, SentOverNeeded: q.SentOverNeeded, MCTP50Ms: q.MCT.P50, MCTP99Ms: q.MCT.P99,
		RepairOverhead: o.RepairOverhead(), Restored: o.Restored(), NAKs: q.NAKs, Timeouts: q.Timeouts, Corrupt: o.Corrupt(),
		Messages: q.Messages, Unfinished: q.Unfinished, QueueMaxOctets: o.WAN.AToB.QueueMax, Disturbed: o.Disturbed(), Profile: s.profile,
		name: s.name, burst: s.burstLength > 0,
	}
	r.LostOnPath = o.WAN.AToB.LostRandom[0].Packets + o.WAN.AToB.LostBurst[0].Packets
	r.setLossless(lossless)
	return r
}

func (r *row) setLossless(bps float64) {
	r.LosslessGoodputBps = bps
	if bps > 0 {
		r.GoodputRatio = r.GoodputBps / bps
	}
}

// screen tells the user what happens.
type screen struct {
	w     io.Writer
	l     *link
	began time.Time
}

func newScreen(w io.Writer, l *link) *screen {
	s := &screen{w: w, l: l, began: time.Now()}
	s.say("RDMA WRITEs of 1 MiB, %d outstanding, RoCE MTU %d, over %d Mbit/s with %v round trip; %v for each transfer.\n\n",
		l.depth, roceMTU, l.rate/1_000_000, l.rtt, l.duration)
	return s
}

// say prints; a terminal that is gone is no reason to end.
func (s *screen) say(format string, args ...any) { _, _ = fmt.Fprintf(s.w, format, args...) }

func (s *screen) elapsed() time.Duration { return time.Since(s.began) }

func (s *screen) start(c *scenario) { s.say("%3.0fs  %-22s ", s.elapsed().Seconds(), c.name) }

func (s *screen) done(r *row) {
	s.say("%6.1f Mbit/s", r.GoodputBps/1e6)
	if r.Protected {
		s.say(", %d packets restored", r.Restored)
	} else if r.SentOverNeeded > 1.005 {
		s.say(", every packet sent %.2f times", r.SentOverNeeded)
	}
	if r.Disturbed != "" {
		s.say(" (%s)", r.Disturbed)
	}
	s.say("\n")
}

func (s *screen) table(rows []row) {
	const form = "%-14s %-5s %9s %7s %10s %9s %9s %9s %9s %6s %8s\n"
	s.say("\n"+form, "path", "CREM", "goodput", "ratio", "sent/need", "p50 ms", "p99 ms", "overhead", "restored", "NAKs", "corrupt")
	s.say("%s\n", strings.Repeat("-", 107))
	for i := range rows {
		r := &rows[i]
		protected, overhead, restored := "-", "", ""
		if r.Protected {
			protected, overhead, restored = "yes", fmt.Sprintf("%.1f %%", 100*r.RepairOverhead), fmt.Sprint(r.Restored)
		}
		s.say(form, strings.TrimSuffix(r.name, ", CREM"), protected, fmt.Sprintf("%.1f M", r.GoodputBps/1e6), fmt.Sprintf("%.3f", r.GoodputRatio),
			fmt.Sprintf("%.3f", r.SentOverNeeded), fmt.Sprintf("%.0f", r.MCTP50Ms), fmt.Sprintf("%.0f", r.MCTP99Ms), overhead, restored, fmt.Sprint(r.NAKs), fmt.Sprint(r.Corrupt))
	}
	for i := range rows {
		if p := rows[i].Profile; p != nil {
			s.say("\nprofile: k %d, at most %d repair symbols, epsilon %s, %s, %s, %s, hold %s, at most %s of repairs\n",
				p.K, p.MaxRepairSymbols, p.Epsilon, p.RepairStrategy, p.LossModel, p.Delivery, p.MaxHold, p.MaxRepairRatio)
			break
		}
	}
}

func (s *screen) files(names ...string) {
	s.say("\n%.0f seconds. Results:", s.elapsed().Seconds())
	for _, n := range names {
		if n != "" {
			s.say(" %s", n)
		}
	}
	s.say("\n")
}
