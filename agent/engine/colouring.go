// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"crem.dev/crem/agent/reporter"
	"crem.dev/crem/internal/agentapi"
)

// clockRoom is how much of half a period the clocks and the WAN may use: the rest is for packets that overtake others.
const clockRoom = markingPeriod * 3 / 8

// colouring is what is known of a tunnel that is measured.
type colouring struct {
	on      bool
	from    uint32        // the first period that is whole
	trip    time.Duration // least round trip of lately between the two gateways; 0: none was measured
	period  uint32        // in which the last messages came, and how many
	taken   int
	silent  int    // periods with packets since they came
	packets uint64 // that entered in the periods compared
	lost    uint64 // of these
	delay   drift
	in, out fault // of what comes from there, and of what goes there
}

// set begins or ends the measuring of a tunnel.
func (x *colouring) set(on bool, present uint32) {
	switch {
	case !on:
		*x = colouring{trip: x.trip}
	case !x.on:
		x.on, x.from = true, present+wholeAfter
	}
}

// answered notes a round trip. The least of lately is what the path needs, the rest is how late a processor was.
func (x *colouring) answered(trip time.Duration) {
	if x.trip == 0 || trip < x.trip {
		x.trip = trip
	}
	x.trip += (trip - x.trip) / 8
}

// apart is how long packets take to the other end by the two clocks, from a message of the other end that was sent and came at these times; ok if that
// fits a period.
func (x *colouring) apart(sent, came time.Duration) (d time.Duration, ok bool) {
	d = x.trip - (came - sent)
	return d, x.trip > 0 && d > -clockRoom && d < clockRoom
}

// drift is how the delay of a tunnel has changed since it is measured: period by period the mean over its packets.
type drift struct {
	period      uint32  // the newest one
	before      float64 // what it was then, microseconds
	sum, weight float64 // of the changes in it, by packets, and these
}

func (d *drift) add(x *reporter.Measurement) {
	if x.Period != d.period {
		*d = drift{period: x.Period, before: d.now()}
	}
	d.sum += float64(x.DelayChange) * float64(x.Entered)
	d.weight += float64(x.Entered)
}

// now is in microseconds.
func (d *drift) now() float64 {
	if d.weight == 0 {
		return d.before
	}
	return d.before + d.sum/d.weight
}

// describeMeasured is what the status says of a way that is measured.
func (w *way) describeMeasured() *agentapi.Measured {
	if !w.measured {
		return nil
	}
	out := &agentapi.Measured{}
	for i, x := range w.tunnels {
		out.Packets += x.measured.packets
		out.Lost += x.measured.lost
		if i == w.use {
			out.DelayChange = int64(x.measured.delay.now())
		}
		for _, f := range [...]fault{x.measured.out, x.measured.in} {
			if out.Problem == "" {
				out.Problem = string(f)
			}
		}
	}
	return out
}
