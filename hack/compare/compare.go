// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"time"

	"crem.dev/crem/internal/plan"
	"crem.dev/crem/sim"
	"crem.dev/crem/sim/endpoint"
	"crem.dev/crem/sim/model"
	"crem.dev/crem/sim/world"
)

// Comparison is all numbers.
type Comparison struct {
	Version string `json:"version"`
	Cells   []Cell `json:"cells"` // by analysis
	Runs    []Run  `json:"runs"`  // by simulation
}

// Cell is one point of the analysis. Completions are p99.9 over lossless.
type Cell struct {
	RTT     time.Duration      `json:"rttNanoseconds"`
	Message int64              `json:"messageOctets"`
	Loss    float64            `json:"loss"`
	P999    map[string]float64 `json:"p999OverLossless"`
	Repair  map[string]float64 `json:"overhead"` // octets of CREM sent ahead over those of data
}

// Run is one simulated mechanism, next to its analysis.
type Run struct {
	Mechanism string  `json:"mechanism"`
	Message   int64   `json:"messageOctets"`
	Loss      float64 `json:"loss"`
	Messages  int     `json:"messages"`
	Mean      float64 `json:"meanOverLossless"`
	P999      float64 `json:"p999OverLossless"` // 0: too few messages
	Analysis  struct {
		Mean float64 `json:"meanOverLossless"`
		P999 float64 `json:"p999OverLossless"`
	} `json:"analysis"`
	Sent float64 `json:"overhead"` // octets sent beyond the data, over those of data
}

// Mechanisms, by the keys of a plan's but for CREM, which stands on several transports.
const (
	cremGoBackN = "crem-go-back-n"
	cremRepeat  = "crem-selective-repeat"
	cremMRC     = "crem-mrc"
	cremVeRoCE  = "crem-veroce"
	crem        = "crem"
	mds         = "fixed-mds"
	xor         = "fixed-xor"
	nack        = string(plan.SelectiveRepeat)
	timer       = string(plan.SelectiveRepeatTime)
	goBackN     = string(plan.GoBackN)
	mrc         = string(plan.MRC)
	veroce      = string(plan.VeRoCE)
)

// columns of the tables. Those of CREM name the transport that it stands on, and come first.
var columns = []struct {
	key, name string
	under     plan.Transport // CREM
}{
	{cremGoBackN, "CREM, go-back-N", plan.GoBackN}, {cremRepeat, "CREM, selective repeat", plan.SelectiveRepeat},
	{cremMRC, "CREM, MRC", plan.MRC}, {cremVeRoCE, "CREM, veRoCE", plan.VeRoCE},
	{key: mds, name: "fixed (32, 8)"}, {key: xor, name: "XOR (32, 8)"}, {key: nack, name: "NACK"}, {key: timer, name: "timer"}, {key: goBackN, name: "go-back-N"},
	{key: mrc, name: "MRC"}, {key: veroce, name: "veRoCE"},
}

// What is compared. At a loss of exactly 1e-3 the last acknowledgement is lost in one message of 1,000, which a p99.9 just leaves out; so no
// loss is that.
const bandwidth = 400e9

var (
	rtts   = []time.Duration{time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond}
	sizes  = []int64{128 << 10, 8 << 20, 128 << 20, 1 << 30, 8 << 30}
	losses = []float64{1e-6, 1e-5, 1e-4, 5e-4, 2e-3, 1e-2, 5e-2}

	simulatedRTT    = 25 * time.Millisecond
	simulatedLosses = []float64{1e-5, 1e-4, 1e-3, 1e-2}
	simulatedSizes  = map[int64]int{8 << 20: 1000, 128 << 20: 60} // and how many
)

func compare(version string, most int) Comparison {
	c := Comparison{Version: version}
	for _, rtt := range rtts {
		for _, size := range sizes {
			for _, loss := range losses {
				c.Cells = append(c.Cells, cell(rtt, size, loss))
			}
		}
		fmt.Fprintf(os.Stderr, "compare: analysed a round trip of %s\n", rtt)
	}
	for _, size := range []int64{8 << 20, 128 << 20} {
		for _, loss := range simulatedLosses {
			for _, column := range columns {
				if r, ok := simulate(column.key, size, loss, simulatedSizes[size], most); ok {
					c.Runs = append(c.Runs, r)
					fmt.Fprintf(os.Stderr, "compare: simulated %s, %d octets, loss %g\n", column.key, size, loss)
				}
			}
		}
	}
	return c
}

func input(rtt time.Duration, size int64, loss float64, t plan.Transport) plan.Input {
	in, err := plan.Input{RTT: rtt, Bandwidth: bandwidth, Message: size, Loss: loss, Transport: t}.Normal()
	if err != nil {
		panic(err) // every cell is a possible one
	}
	return in
}

func cell(rtt time.Duration, size int64, loss float64) Cell {
	c := Cell{RTT: rtt, Message: size, Loss: loss, Repair: map[string]float64{}}
	for _, column := range columns {
		if column.under == "" {
			continue
		}
		in := input(rtt, size, loss, column.under)
		s := in.Sample()
		if c.P999 == nil {
			c.P999 = maps.Clone(s.P999)
			delete(c.P999, crem)
		}
		c.P999[column.key], c.Repair[column.key] = s.P999[crem]*in.Lossless()/lossless(rtt, size), s.Repair
	}
	return c
}

// lossless is what all mechanisms are measured by: the plain packets of RoCEv2 without a loss.
func lossless(rtt time.Duration, size int64) float64 {
	in := input(rtt, size, 0, plan.GoBackN)
	return in.Lossless()
}

// published is the setting that is simulated: acknowledgements are never lost, as in published models.
func published(size int64, loss float64, t plan.Transport) plan.Input {
	in := input(simulatedRTT, size, loss, t)
	in.LosslessBack = true
	return in
}

// simulate runs one mechanism for most portions of events; it is false where no message completed in these.
func simulate(key string, size int64, loss float64, messages, most int) (Run, bool) {
	r := Run{Mechanism: key, Message: size, Loss: loss}
	for _, column := range columns {
		if column.key == key && column.under != "" {
			return r.protected(column.under, messages, most)
		}
	}
	p := plan.Make(published(size, loss, plan.GoBackN))
	result, ok := other(key, p, size, loss, messages, most)
	if !ok {
		return r, false
	}
	n := len(result.Completions)
	p999 := 0.0
	if n >= 1000 {
		p999 = result.OverIdeal(result.Quantile(0.999))
	}
	for i := range p.Mechanisms {
		if p.Mechanisms[i].Key == key {
			r.take(&p.Mechanisms[i], n, result.OverIdeal(result.Mean()), p999, result.Cost.SentOverNeeded()-1, p.Lossless)
		}
	}
	return r, true
}

// protected runs CREM under a transport.
func (r *Run) protected(under plan.Transport, messages, most int) (Run, bool) {
	p := plan.Make(published(r.Message, r.Loss, under))
	s, err := p.Simulate(messages)
	if err != nil {
		return *r, false
	}
	for n := 0; n < most && s.Step(); n++ {
		continue
	}
	s.Finish()
	m := p.Mechanisms[1]
	r.take(&p.Mechanisms[0], m.Messages, m.Mean/p.Lossless, m.P999/p.Lossless, m.Overhead, p.Lossless)
	return *r, m.Messages > 0
}

func (r *Run) take(analysis *plan.Mechanism, messages int, mean, p999, sent, lossless float64) {
	r.Messages, r.Mean, r.P999, r.Sent = messages, mean, p999, sent
	r.Analysis.Mean, r.Analysis.P999 = analysis.Mean/lossless, analysis.P999/lossless
}

// other simulates a mechanism that is not CREM.
func other(key string, p *plan.Plan, size int64, loss float64, messages, most int) (sim.Result, bool) {
	config := map[string]endpoint.Config{
		mds:     {Kind: endpoint.Coded, Code: endpoint.Code{K: model.SDR(model.MDS).K, M: model.SDR(model.MDS).M}},
		xor:     {Kind: endpoint.Coded, Code: endpoint.Code{K: model.SDR(model.XOR).K, M: model.SDR(model.XOR).M, XOR: true}},
		nack:    {Kind: endpoint.SelectiveRepeat, NACK: true},
		timer:   {Kind: endpoint.SelectiveRepeat},
		goBackN: {Kind: endpoint.GoBackN, Retries: -1},
		mrc:     {Kind: endpoint.MRC, Retries: -1},
		veroce:  {Kind: endpoint.VeRoCE, Retries: -1},
	}[key]
	link := world.Link{Rate: bandwidth, Delay: simulatedRTT / 2, Framing: 38}
	back := link
	link.Loss.Rate = loss
	run, err := sim.New(sim.Scenario{Link: link, Back: &back, Transport: config, MessageOctets: size, Messages: messages, MTU: p.Input.RDMAMTU, Seed: 1})
	if err != nil {
		return sim.Result{}, false
	}
	for n := 0; n < most && run.Step(1<<16); n++ {
		continue
	}
	r := run.Result()
	return r, len(r.Completions) > 0
}
