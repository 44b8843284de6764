// SPDX-License-Identifier: Apache-2.0

package model

import "math"

const (
	// mrcRange is the most packets in flight of MRC: max_psn_range is an octet of 128 PSNs.
	mrcRange = 255 * 128
	// told is after how many packets a bitmap tells of a hole: 16 that may only have overtaken it, and half of the 32 between two answers.
	told = 32
	// untold is how many last packets of a message no bitmap tells of, as too few follow.
	untold = 16
)

// window is how many packets a transport with bitmaps lets be in flight at most: twice those of a round trip, and no more than most.
func window(p Path, m Message, most float64) float64 {
	const least = 64
	return min(max(2*math.Floor(p.RTT/p.PacketTime(m)), least), most)
}

// MRCWindow is the packets that MRC lets be in flight.
func MRCWindow(p Path, m Message) float64 {
	const unit = 128
	return min(math.Ceil(window(p, m, math.Inf(1))/unit)*unit, mrcRange)
}

// VeRoCEWindow is the packets that veRoCE lets be in flight.
func VeRoCEWindow(p Path, m Message) float64 { return window(p, m, 1<<23) }

// MRC is the completion under Multipath Reliable Connection as sim/endpoint has it: a bitmap tells of a lost packet after a round trip, once; whether
// the second copy is lost only the local ACK timeout tells, in seconds. The receiver keeps track of a window of packets, at most MRCWindow.
func MRC(p Path, m Message, timeout, window float64) Distribution {
	again := func(float64) float64 { return timeout }
	return selective(p, m, timeout, min(window, MRCWindow(p, m)), untold, again)
}

// VeRoCE is the completion under veRoCE as sim/endpoint has it: a SACK tells of a lost packet after a round trip. Whether the second copy is lost shows
// when RxtPSN stands still, which it does when the window is used up or everything has been sent, unless the timer is shorter.
func VeRoCE(p Path, m Message, timeout, window float64) Distribution {
	window = min(window, VeRoCEWindow(p, m))
	const patience = 1.125 // round trips until it is taken for still
	still := patience*p.RTT + 4*told*p.PacketTime(m)
	again := func(tries float64) float64 {
		wait := still
		if tries == 0 {
			wait += min(window, m.Packets()/2) * p.PacketTime(m)
		}
		return min(timeout, wait)
	}
	// A bitmap reaches the last packets too while a hole before them is open.
	alone := math.Pow(1-p.Loss, min(p.RTT/p.PacketTime(m), m.Packets())/p.runs())
	return selective(p, m, timeout, window, 1+(untold-1)*alone, again)
}

// selective is the completion where bitmaps tell of a first loss, and of the loss of a copy is known again(copies before) after it was sent.
// The last ones, of which no bitmap tells, wait for the timeout.
func selective(p Path, m Message, timeout, window, last float64, again func(float64) float64) Distribution {
	packets, step := m.Packets(), p.PacketTime(m)/(1-p.Loss)
	units := max(packets/p.runs(), 1)
	s := Stream{Units: units, Step: packets * step / units, After: p.RTT, Delay: []Delay{{0, p.Loss}}}
	at, left := p.RTT+told*step, p.Loss*p.Loss
	for n := 0.0; n < maxTries; n++ {
		s.Delay = append(s.Delay, Delay{at, left})
		if units*left < negligible {
			break
		}
		at += again(n) + step
		left *= p.Loss
	}
	last = min(last, packets) / p.runs()
	return Late{
		Distribution: s.Within(window * units / packets), First: 1 - math.Pow(1-p.Loss, last)*(1-p.Back), Again: 1 - (1-p.Loss)*(1-p.Back), Timeout: timeout,
	}
}
