// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"crem.dev/crem/test/lab/wan"
)

// snapshot is every counter that is not the audit's, before or after a run.
type snapshot struct {
	line     [2]wan.Counters
	host     uint64 // frames that the emulator lost for want of memory or time, or that were not what a wire carries
	hardware [2]map[string]int
	agents   map[string]uint64
}

func (w *world) snapshot(ctx context.Context) (s snapshot, err error) {
	if s.hardware[0], err = hardwareCounters(ctx, w.guestA); err != nil {
		return s, err
	}
	if s.hardware[1], err = hardwareCounters(ctx, w.guestB); err != nil {
		return s, err
	}
	s.line, s.host = w.line.counters()
	s.agents, err = w.agentCounters(ctx)
	return s, err
}

func (r *result) fill(before, after snapshot) {
	var crem, roce uint64
	for i := range after.line {
		in, was := &after.line[i].In, &before.line[i].In
		for _, class := range []wan.Class{wan.RoCEData, wan.RoCEOther} {
			roce += in[class].Octets - was[class].Octets
		}
		crem += in[wan.CREM].Octets - was[wan.CREM].Octets
		r.RepairPackets += in[wan.CREM].Packets - was[wan.CREM].Packets
		r.Lost += after.line[i].LostRandom.Total() - before.line[i].LostRandom.Total()
		r.Hardware[i] = changed(before.hardware[i], after.hardware[i])
	}
	r.HostDropped = after.host - before.host
	if roce > 0 {
		r.RepairRatio = float64(crem) / float64(roce)
	}
	if after.agents != nil {
		r.Agents = map[string]uint64{}
		for name, n := range after.agents {
			if d := n - before.agents[name]; d != 0 {
				r.Agents[name] = d
			}
		}
	}
	r.Restored = r.Agents["crf_restored"]
}
