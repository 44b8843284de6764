// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/test/lab/bridge"
	"crem.dev/crem/test/lab/topology"
	"crem.dev/crem/test/lab/trial"
	"crem.dev/crem/test/lab/wan"
)

// row is what came of a phase, an element of the JSON.
type row struct {
	Scenario  string  `json:"scenario"`
	Phase     string  `json:"phase"`
	Protected bool    `json:"protected"`
	Seconds   float64 `json:"seconds"`
	DataBps   float64 `json:"data_bps"`        // RDMA data that came out of the link, repetitions included
	Lost      float64 `json:"lost"`            // share of the data packets that the path lost, full queues included
	Estimate  float64 `json:"estimate"`        // mean over the flows, at the end of the phase
	M         float64 `json:"m"`               // mean over the flows, at the end of the phase
	Overhead  float64 `json:"repair_overhead"` // CREM octets over RDMA data octets, as they enter the link
	Restored  uint64  `json:"restored"`
	Requests  uint64  `json:"requests"`
	Congested uint64  `json:"congested_intervals"`     // LOSS_REPORTs whose loss counted as congestion
	Reported  uint64  `json:"reported,omitempty"`      // lost packets that a Path Reporter named
	Early     uint64  `json:"early,omitempty"`         // repair symbols that nobody asked for, sent for them
	AnswerP50 float64 `json:"answer_ms_p50,omitempty"` // from a report's leaving until the repair came by, where the packets were lost
	AnswerP99 float64 `json:"answer_ms_p99,omitempty"`
	Tunnel    *tunnel `json:"tunnel,omitempty"`
	RivalBps  float64 `json:"rival_bps"`           // what the rival got through the link
	RivalSent float64 `json:"rival_sent_bps"`      // what it sent
	Why       string  `json:"why"`                 // the first flow's explanation at the end of the phase
	Corrupt   uint64  `json:"corrupt"`             // of the whole scenario
	Disturbed string  `json:"disturbed,omitempty"` // what the machine did to the measurement
}

// tunnel is what two thresholds of the WAN did to flows in a tunnel.
type tunnel struct {
	Packets  uint64 `json:"packets"`   // that came through it
	Light    uint64 `json:"light"`     // of these, with an early warning
	Told     uint64 `json:"told"`      // notifications that the ingress acted upon
	OverRate uint64 `json:"over_rate"` // packets that the ingress marked CE itself
	CE       uint64 `json:"ce"`        // packets with CE that the endpoints got
}

const form = "%-22s %-8s %9s %8s %9s %5s %9s %9s %9s %10s %8s\n"

func (r *row) print() {
	estimate, m := "-", "-"
	if r.Protected {
		estimate, m = fmt.Sprintf("%.3f %%", 100*r.Estimate), fmt.Sprintf("%.1f", r.M)
	}
	fmt.Printf(form, r.Scenario, r.Phase, fmt.Sprintf("%.1f M", r.DataBps/1e6), fmt.Sprintf("%.3f %%", 100*r.Lost), estimate, m,
		fmt.Sprintf("%.2f %%", 100*r.Overhead), fmt.Sprint(r.Restored), fmt.Sprint(r.Requests), fmt.Sprint(r.Congested), fmt.Sprintf("%.1f M", r.RivalBps/1e6))
	if r.Reported > 0 {
		fmt.Printf("   (%d losses reported, %d repairs sent for them; from report to repair %.2f ms, %.2f ms in 99 of 100)\n", r.Reported, r.Early, r.AnswerP50, r.AnswerP99)
	}
	if t := r.Tunnel; t != nil {
		fmt.Printf("   (%d packets through the tunnel, %d with an early warning; %d notifications acted upon, %d packets over the rate; %d with CE at the endpoints)\n",
			t.Packets, t.Light, t.Told, t.OverRate, t.CE)
	}
}

// watch leads a transfer through the phases of its scenario and takes down what happens.
type watch struct {
	ctx  context.Context
	o    *options
	s    *scenario
	r    *trial.Running
	rows []row
}

// totals are counters at one moment.
type totals struct {
	at                                   time.Time
	dataIn, crem, dataOut, dataLost, all float64
	rival, rivalIn                       float64
	restored, requests, congested, early uint64
	reports                              bridge.Reports
	loss, m                              float64
	why                                  string
	tunnel                               tunnel
}

func (w *watch) run(r *trial.Running) error {
	w.r = r
	if err := w.sleep(time.Second); err != nil {
		return err
	}
	for i := range w.s.phases {
		if err := w.phase(&w.s.phases[i]); err != nil {
			return err
		}
	}
	return nil
}

func (w *watch) sleep(d time.Duration) error {
	select {
	case <-w.ctx.Done():
		return w.ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (w *watch) phase(p *phase) error {
	if p.change != "" {
		if err := w.r.SetPath(w.ctx, p.change); err != nil {
			return err
		}
	}
	if p.rival {
		_, err := w.r.Lab.Start(w.r.Lab.HostA, os.Args[0], "-flood", topology.HostB4.String(), "-flood-rate", fmt.Sprint(int64(rivalRate)), "-flood-for", p.length.String())
		if err != nil {
			return err
		}
	}
	a, err := w.totals()
	if err != nil {
		return err
	}
	if err := w.sleep(p.length); err != nil {
		return err
	}
	b, err := w.totals()
	if err != nil {
		return err
	}
	w.rows = append(w.rows, w.row(p, &a, &b))
	return nil
}

func (w *watch) row(p *phase, a, b *totals) row {
	d := b.at.Sub(a.at).Seconds()
	times := answers(&a.reports, &b.reports)
	r := row{
		Reported: b.reports.Losses - a.reports.Losses, Early: b.early - a.early, AnswerP50: times.percentile(0.5), AnswerP99: times.percentile(0.99),
		Scenario: w.s.name, Phase: p.name, Protected: !w.s.unprotected, Seconds: d, DataBps: 8 * (b.dataOut - a.dataOut) / d,
		Lost: ratio(b.dataLost-a.dataLost, b.all-a.all), Estimate: b.loss, M: b.m, Overhead: ratio(b.crem-a.crem, b.dataIn-a.dataIn),
		Restored: b.restored - a.restored, Requests: b.requests - a.requests, Congested: b.congested - a.congested,
		RivalBps: 8 * (b.rival - a.rival) / d, RivalSent: 8 * (b.rivalIn - a.rivalIn) / d, Why: b.why,
	}
	if w.s.domain != "" {
		r.Tunnel = &tunnel{
			Packets: b.tunnel.Packets - a.tunnel.Packets, Light: b.tunnel.Light - a.tunnel.Light, Told: b.tunnel.Told - a.tunnel.Told,
			OverRate: b.tunnel.OverRate - a.tunnel.OverRate, CE: b.tunnel.CE - a.tunnel.CE,
		}
	}
	return r
}

// histogram is reported packets by how many bridge.AnswerSteps their repair took.
type histogram [bridge.AnswerSteps]uint64

// answers is what a histogram gained.
func answers(a, b *bridge.Reports) (h histogram) {
	for i := range h {
		h[i] = b.Answers[i] - a.Answers[i]
	}
	return h
}

// percentile is the time, in milliseconds and rounded up to a step, within which a share of the packets was repaired; 0 if there were none.
func (h *histogram) percentile(share float64) float64 {
	all, sum := uint64(0), uint64(0)
	for _, n := range h {
		all += n
	}
	for i, n := range h {
		if sum += n; n > 0 && float64(sum) >= share*float64(all) {
			return float64(i+1) * bridge.AnswerStep.Seconds() * 1000
		}
	}
	return 0
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// totals asks the WAN and both agents.
func (w *watch) totals() (t totals, err error) {
	path, err := w.r.Path(w.ctx)
	if err != nil {
		return t, err
	}
	c := &path.AToB
	t.at = time.Now()
	t.dataIn, t.crem, t.dataOut, t.rival = float64(c.In[wan.RoCEData].Octets), float64(c.In[wan.CREM].Octets), float64(c.Out[wan.RoCEData].Octets), float64(c.Out[wan.Other].Octets)
	t.reports = c.Reports
	t.rivalIn = float64(c.In[wan.Other].Octets)
	t.all = float64(c.In[wan.RoCEData].Packets)
	t.dataLost = float64(c.LostRandom[wan.RoCEData].Packets + c.LostBurst[wan.RoCEData].Packets + c.DroppedFull[wan.RoCEData].Packets)
	if w.s.unprotected {
		return t, nil
	}
	var sends, receives []agentapi.Flow
	if sends, err = w.r.AgentA.Flows(w.ctx); err != nil {
		return t, err
	}
	if receives, err = w.r.AgentB.Flows(w.ctx); err != nil {
		return t, err
	}
	var ingress, egress agentapi.Status
	if err := errors.Join(w.r.AgentA.Get(w.ctx, "/v1/status", &ingress), w.r.AgentB.Get(w.ctx, "/v1/status", &egress)); err != nil {
		return t, err
	}
	t.tunnel = tunnel{
		Packets: egress.Counters["tunnel_decapsulated"], Light: egress.Counters["tunnel_light"], CE: egress.Counters["crf_ce_marked"],
		Told: ingress.Counters["cnp_received_early"] + ingress.Counters["cnp_received_severe"], OverRate: ingress.Counters["tunnel_over_rate"],
	}
	n := 0.0
	for i := range sends {
		f := &sends[i]
		if f.Role != "csf" {
			continue
		}
		if n++; n == 1 {
			t.why = f.Why
		}
		t.loss += f.Loss
		t.m += float64(f.M)
		t.requests += f.Counters["requests"]
		t.early += f.Counters["repairs_early"]
		t.congested += f.Counters["congested_intervals"]
	}
	t.loss, t.m = ratio(t.loss, n), ratio(t.m, n)
	for i := range receives {
		if receives[i].Role == "crf" {
			t.restored += receives[i].Restored
		}
	}
	return t, nil
}
