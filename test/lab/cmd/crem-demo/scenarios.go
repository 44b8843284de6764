// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"crem.dev/crem/sim/rc"
	"crem.dev/crem/test/lab/endpoint"
	"crem.dev/crem/test/lab/trial"
	"crem.dev/crem/test/lab/wan"
)

// link is what all transfers have in common.
type link struct {
	rate             int64
	rtt              time.Duration
	window           float64 // bandwidth-delay products in flight
	depth            int
	duration, warmup time.Duration
	seed             uint64
}

const (
	roceMTU     = 4096
	frameOctets = 14 + 20 + 8 + 12 + roceMTU + 4 // of a MIDDLE packet over IPv4
	messageSize = 1 << 20
)

// bdp is the bandwidth-delay product in octets.
func (l *link) bdp() int64 { return int64(float64(l.rate) / 8 * l.rtt.Seconds()) }

// packets is the window of the endpoints.
func (l *link) packets() int { return int(l.window * float64(l.bdp()) / frameOctets) }

// queue is what waits for the link at most: the whole window, go-back-N repetitions and repair symbols fit, so that the loss is the path's alone.
func (l *link) queue() int64 { return int64(4 * l.window * float64(l.bdp())) }

// profile is the CREMProfile of a protected transfer.
type profile struct {
	K                int    `json:"k"`
	MaxRepairSymbols int    `json:"maxRepairSymbols"`
	Epsilon          string `json:"epsilon"`
	RepairStrategy   string `json:"repairStrategy"`
	LossModel        string `json:"lossModel"`
	Delivery         string `json:"delivery"`
	MaxHold          string `json:"maxHold"`
	MaxRepairRatio   string `json:"maxRepairRatio"`
}

func (p *profile) yaml() string {
	return fmt.Sprintf(`apiVersion: crem.dev/v1alpha1
kind: CREMProfile
metadata: {name: %s}
spec:
  k: %d
  maxRepairSymbols: %d
  epsilon: %q
  repairStrategy: %s
  lossModel: %s
  delivery: %s
  maxHold: %s
  maxRepairRatio: %q
`, trial.ProfileName, p.K, p.MaxRepairSymbols, p.Epsilon, p.RepairStrategy, p.LossModel, p.Delivery, p.MaxHold, p.MaxRepairRatio)
}

// scenario is one transfer.
type scenario struct {
	name        string
	loss        float64
	burstLength float64 // 0: independent losses
	profile     *profile
}

func (s *scenario) model() string {
	if s.burstLength > 0 {
		return fmt.Sprintf("Gilbert-Elliott, mean burst %g", s.burstLength)
	}
	return "independent"
}

// standard is the profile of the protected transfers.
func standard() profile {
	return profile{
		K: 192, MaxRepairSymbols: 24, Epsilon: "1e-3", RepairStrategy: "Proactive", LossModel: "Independent",
		Delivery: "InOrder", MaxHold: "100ms", MaxRepairRatio: "0.25",
	}
}

// scenarios returns the transfers in order; the first is the lossless one.
func scenarios(o *options) []scenario {
	paths := []scenario{
		{name: "no loss"},
		{name: "0.1 % loss", loss: 0.001},
		{name: "1 % loss", loss: 0.01},
		{name: "2 % loss", loss: 0.02},
		{name: "1 % in bursts", loss: 0.01, burstLength: 5},
	}
	var all []scenario
	for _, s := range paths {
		all = append(all, s)
		if o.programs.Agent != "" {
			s.name += ", CREM"
			s.profile = &o.profile
			all = append(all, s)
		}
	}
	if o.only == "" {
		return all
	}
	kept := all[:1]
	for _, s := range all[1:] {
		if strings.Contains(s.name, o.only) {
			kept = append(kept, s)
		}
	}
	return kept
}

// trial is the scenario as the lab runs it.
func (s *scenario) trial(l *link) trial.Case {
	t := endpoint.DefaultOptions()
	t.Op, t.Size, t.Duration, t.Warmup, t.Drain = rc.Write, messageSize, l.duration, l.warmup, 2*time.Second
	t.Config.MTU, t.Config.Depth, t.Config.Window, t.Config.Retries = roceMTU, l.depth, l.packets(), -1
	t.Config.Timeout = 268 * time.Millisecond
	t.Config.Rate = l.rate // as a NIC of the link's speed: no burst is faster than the line
	c := trial.Case{
		Name:     s.name,
		Transfer: t,
		Path: wan.Settings{
			Rate: l.rate, Queue: l.queue(), Delay: wan.Duration(l.rtt / 2), ProtectedOnly: true, Seed: l.seed,
		},
	}
	if s.burstLength > 0 {
		c.Path.BurstLoss, c.Path.BurstLength = s.loss, s.burstLength
	} else {
		c.Path.Loss = s.loss
	}
	if s.profile != nil {
		c.Profile = s.profile.yaml()
	}
	return c
}
