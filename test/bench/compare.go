// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
)

const (
	sourceK = 32
	// lostShare is how many copies may be missing before a ratio says nothing: an agent that takes no copies costs nothing.
	lostShare = 0.01
	// countSkew is what two counters that are read one after the other may differ by.
	countSkew = 0.03
	// saturated is how many packets in a hundred must have found the queue full for the gateway, and not the generator, to be the limit.
	saturated = 5
)

// protection is one way in which the gateway protects.
type protection struct {
	name string
	way  func(g *gateway) *way
	run  func(ctx context.Context, g *gateway, data int) (passage, error)
	m    int
	goal map[int]float64 // ratio by octets of data
}

func protections() []protection {
	receiving := func(m int) func(context.Context, *gateway, int) (passage, error) {
		return func(ctx context.Context, g *gateway, data int) (passage, error) { return g.receiving(ctx, data, m) }
	}
	arriving := func(g *gateway) *way { return &g.arriving }
	return []protection{
		{"gateway/csf", func(g *gateway) *way { return &g.leaving }, func(ctx context.Context, g *gateway, data int) (passage, error) { return g.sending(ctx, data) }, 2, map[int]float64{1024: 0.65, 4096: 0.5}},
		{"gateway/crf-in-order", arriving, receiving(2), 2, map[int]float64{1024: 0.6, 4096: 0.5}},
		{"gateway/crf-in-order", arriving, receiving(0), 0, map[int]float64{1024: 0.6, 4096: 0.5}},
	}
}

// compare runs a protection and plain forwarding in turns.
func compare(ctx context.Context, log io.Writer, g *gateway, x protection, data, rounds int) (Result, error) {
	var rates, core, kpps, plain, gbps, coreNS, plainNS, agentNS, batches, repairs []float64
	frame := float64(len(newNumbered(x.way(g).headers, data).model))
	lost := map[string]uint64{}
	var unsaturated int
	var memory int64 // most octets of packets and symbols
	var reasons []string
	for i := range rounds {
		p, err := g.plain(ctx, x.way(g), data)
		if err != nil {
			return Result{}, fmt.Errorf("%s, plain: %w", x.name, err)
		}
		q, err := x.run(ctx, g, data)
		if err != nil {
			return Result{}, fmt.Errorf("%s: %w", x.name, err)
		}
		if p.refusedPercent() < saturated {
			unsaturated++
		}
		why := q.doubt(x)
		memory = max(memory, q.after.status.Memory.InUse)
		for name, n := range q.lost() {
			lost[name] += n
		}
		fmt.Fprintf(log, "%s m=%d %d octets, round %d: plain %.0f kpps (%.1f %% refused), protected %.0f kpps (%.1f %% refused), ratio of rates %.3f, of core time %.3f%s\n",
			x.name, x.m, data, i+1, p.kpps(), p.refusedPercent(), q.kpps(), q.refusedPercent(), q.kpps()/p.kpps(), p.corePerPacket()/q.corePerPacket(), suffix(why))
		plain, kpps = append(plain, p.kpps()), append(kpps, q.kpps())
		gbps = append(gbps, q.kpps()*frame*8/1e6)
		agentNS = append(agentNS, float64(q.agentTime.Nanoseconds())/float64(q.packets))
		coreNS, plainNS = append(coreNS, q.corePerPacket()), append(plainNS, p.corePerPacket())
		batches = append(batches, q.batchesPerSecond())
		repairs = append(repairs, q.repairsPerBlock())
		if why != "" {
			reasons = append(reasons, why)
			continue
		}
		rates, core = append(rates, q.kpps()/p.kpps()), append(core, p.corePerPacket()/q.corePerPacket())
	}
	r := Result{Name: x.name, Unit: "kpps", Value: median(kpps), RatioTo: "plain kernel forwarding", Params: map[string]any{
		"octets": frame, "k": sourceK, "m": x.m, "gbps": median(gbps), "plain_kpps": median(plain), "core_ns_per_packet": median(coreNS), "plain_core_ns_per_packet": median(plainNS), "agent_ns_per_packet": median(agentNS),
		"agent_batches_per_s": median(batches), "agent_memory": memory, "repairs_per_block": median(repairs), "rounds": rounds, "valid_rounds": len(core), "goal": x.goal[data],
	}}
	for name, n := range lost {
		r.Params[name] = n
	}
	if 2*unsaturated > rounds {
		r.Params["plain_limited_by"] = "generator"
	}
	if 2*len(core) > rounds {
		r.Ratio = median(core)
		r.Params["rate_ratio"] = median(rates)
	} else {
		r.Params["why"] = strings.Join(reasons, "; ")
	}
	return r, nil
}

func (p *passage) refusedPercent() float64 { return 100 * float64(p.refused) / float64(p.packets) }

func suffix(why string) string {
	if why == "" {
		return ""
	}
	return ", no figure: " + why
}

// lost are the copies that the agent did not get, by reason.
func (p *passage) lost() map[string]uint64 {
	lost := map[string]uint64{}
	drops, counters := p.after.status.Drops, p.after.status.Counters
	lost["tap_full"] = drops["tap_full"] - p.before.status.Drops["tap_full"]
	lost["ring_missed"] = counters["ring_missed"] - p.before.status.Counters["ring_missed"]
	for name, n := range counters {
		if reason, ok := strings.CutPrefix(name, "kernel_open_"); ok {
			if n -= p.before.status.Counters[name]; n > 0 {
				lost["open_"+reason] = n
			}
		}
	}
	return lost
}

// batchesPerSecond is how often the agent's worker went round: its wake-ups at most.
func (p *passage) batchesPerSecond() float64 {
	var n uint64
	for i, w := range p.after.status.Workers {
		n += w.Batches - p.before.status.Workers[i].Batches
	}
	return float64(n) / p.seconds
}

// repairsPerBlock is the number of repair symbols for every 32 packets.
func (p *passage) repairsPerBlock() float64 {
	n := p.after.flow.RepairPackets - p.before.flow.RepairPackets
	return float64(n) * sourceK / float64(max(1, p.after.flow.SourcePackets-p.before.flow.SourcePackets))
}

// doubt says why the window says nothing about the cost of protection; empty: it does.
func (p *passage) doubt(x protection) string {
	var lost uint64
	for _, n := range p.lost() {
		lost += n
	}
	handled := float64(p.after.flow.SourcePackets - p.before.flow.SourcePackets)
	switch repairs := p.repairsPerBlock(); {
	case float64(lost) > lostShare*float64(p.packets):
		return fmt.Sprintf("%.1f %% of the copies were lost", 100*float64(lost)/float64(p.packets))
	case handled < (1-countSkew)*float64(p.packets):
		return fmt.Sprintf("the agent has handled %.1f %% of the packets", 100*handled/float64(p.packets))
	case repairs < 0.9*float64(x.m) || repairs > 1.25*float64(x.m):
		return fmt.Sprintf("%.2f repair symbols for every %d packets instead of %d", repairs, sourceK, x.m)
	}
	return ""
}
