// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/reporter"
)

const (
	readingsOctets = reportMTU - 40 - udpHead
	// readingsSent bounds the messages of a period, over all tunnels.
	readingsSent = 16
	// tellSilent is for how many periods after its last packet a flow is told, with no packets: a tunnel does not outlive its path for longer.
	tellSilent = 4
)

// target is a tunnel whose other end is told what came out of it.
type target struct {
	from       uint32
	x          *tunnel
	list       [2][]ecn.Reading // of IPv4 and IPv6
	recoloured bool
}

// targets lists the tunnels that are measured and in use by their other end; no Tunnels: none is measured. After a jump of the clock they are measured
// anew.
func (t *tunnels) targets(jumped bool, present uint32) (kernel Tunnels, list map[bpf.Tunnel]*target) {
	t.mu.Lock()
	defer t.mu.Unlock()
	list = map[bpf.Tunnel]*target{}
	for _, x := range t.byEnds {
		y := &x.measured
		if !y.on || t.kernel == nil {
			continue
		}
		kernel = t.kernel
		if jumped {
			y.from = present + wholeAfter
		}
		if y.unheard(present) && y.silent < patience { // what was wrong may not be any more
			y.out = ""
		}
		if x.theirs != 0 {
			list[x.Tunnel] = &target{from: y.from, x: x}
		}
	}
	return kernel, list
}

// tellReadings tells the other ends of the measured tunnels what came out of them in the period that is over now.
func (e *Engine) tellReadings(kernel Tunnels, targets map[bpf.Tunnel]*target, over uint32) {
	m := &e.measuring
	err := kernel.Arrived(func(c *bpf.FlowCounts) {
		if to := targets[c.Tunnel]; to != nil && int32(over-to.from) >= 0 && int32(over-c.Newest()) <= tellSilent {
			m.add(to, c, over)
		}
	})
	if err == nil {
		e.say(m.messages(targets, over))
		e.noteArrived(targets)
	}
}

func (m *measuring) add(to *target, c *bpf.FlowCounts, over uint32) {
	k := reporter.Flow{Src: c.Flow.Src, Dst: c.Flow.Dst, Label: c.Flow.QPN}
	r, why := c.Reading(k, over, over)
	if why != reporter.DropNone {
		to.recoloured = to.recoloured || why == reporter.DropRecoloured
		m.drop(why)
		return
	}
	version := 0
	if !k.Src.Is4() {
		version = 1
	}
	to.list[version] = append(to.list[version], ecn.Reading{Flow: k, Packets: r.Packets, Sum: r.Sum})
}

// messages are the readings of a period, no more than may be sent at a time.
func (m *measuring) messages(targets map[bpf.Tunnel]*target, period uint32) (list []datagram) {
	for _, to := range targets {
		for version, readings := range to.list {
			most := ecn.MostReadings(readingsOctets, version == 0)
			readings = inTurn(readings, period, most*readingsSent)
			for len(readings) > 0 && len(list) < readingsSent {
				n := min(most, len(readings))
				msg := ecn.Readings{Period: period, Time: uint64(m.unix().Microseconds()), List: readings[:n]}
				list = append(list, datagram{to.x.Local, netip.AddrPortFrom(to.x.Remote, to.x.Port), msg.Append(nil)})
				readings = readings[n:]
			}
		}
	}
	m.sent.Add(uint64(len(list)))
	return list
}

// inTurn puts other flows first every second period, where not all of so many can be told: each is told in periods of both colours.
func inTurn(list []ecn.Reading, period uint32, most int) []ecn.Reading {
	if len(list) <= most {
		return list
	}
	first := int(period/2) * most % len(list)
	return append(list[first:len(list):len(list)], list[:first]...)
}

// noteArrived notes what is wrong with what arrived.
func (e *Engine) noteArrived(targets map[bpf.Tunnel]*target) {
	e.tunnels.mu.Lock()
	defer e.tunnels.mu.Unlock()
	for _, to := range targets {
		text := ""
		if to.recoloured {
			text = faultRecoloured
		}
		to.x.measured.in.set(e, to.x, text)
	}
}
