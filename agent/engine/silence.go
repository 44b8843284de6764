// SPDX-License-Identifier: Apache-2.0

package engine

import "crem.dev/crem/agent/bpf"

// patience is in how many periods packets may go into a tunnel of which its other end tells nothing: the setting reaches two sites a while apart.
const patience = 60

// unheard reports whether no readings have come of late.
func (x *colouring) unheard(present uint32) bool { return present-x.period > tellSilent }

// hear notes a message of readings; false: it is one too many of its period.
func (x *colouring) hear(present uint32) bool {
	if x.period != present {
		x.period, x.taken = present, 0
	}
	if x.silent >= patience {
		x.out = ""
	}
	x.silent = 0
	x.taken++
	return x.taken <= readingsTaken
}

// miss notes a period in which no readings came; packets went into the tunnel in it, or not.
func (x *colouring) miss(e *Engine, t *tunnel, packets bool) {
	if packets {
		x.silent++
	}
	if x.silent >= patience {
		x.out.set(e, t, faultSilent)
	}
}

// noteSilence notes which tunnels take packets of which their other ends tell nothing: those do not measure.
func (e *Engine) noteSilence(kernel Tunnels, over uint32) {
	list := e.tunnels.unheard(e.measuring.present())
	if len(list) == 0 {
		return
	}
	entered := map[bpf.Tunnel]bool{} // of which flows are known: in the period that is over, or before
	err := kernel.Entered(func(c *bpf.FlowCounts) { entered[c.Tunnel] = entered[c.Tunnel] || int32(c.Newest()-over) >= 0 })
	if err != nil {
		return
	}
	e.tunnels.mu.Lock()
	defer e.tunnels.mu.Unlock()
	for _, x := range list {
		packets, known := entered[x.Tunnel]
		if !known { // nothing has gone there for long
			x.measured.silent = 0
		}
		x.measured.miss(e, x, packets)
	}
}

// unheard lists the tunnels that are measured from here, and of which no readings have come of late.
func (t *tunnels) unheard(present uint32) (list []*tunnel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.byEnds {
		if x.measured.on && x.measured.unheard(present) {
			list = append(list, x)
		}
	}
	return list
}
