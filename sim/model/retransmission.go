// SPDX-License-Identifier: Apache-2.0

package model

// The two retransmission timeouts that SDR-RDMA compares with, in round trips: a timer, and a NACK, which tells of a loss after one.
const (
	RTO  = 3
	NACK = 1
)

// maxTries bounds the tries that are followed; at a loss of one half 200 leave 1e-60.
const maxTries = 200

// SelectiveRepeat is the completion under selective repeat: each lost packet, and it alone, is sent again after timeout seconds.
func SelectiveRepeat(p Path, m Message, timeout float64) Stream {
	return repeat(p, m.Packets(), p.PacketTime(m), timeout)
}

// repeat is SelectiveRepeat for a number of packets that take step seconds each.
func repeat(p Path, packets, step, timeout float64) Stream {
	units := max(packets/p.runs(), 1)
	s := Stream{Units: units, Step: packets * step / units, After: p.RTT}
	left := p.Loss
	for n := range maxTries {
		s.Delay = append(s.Delay, Delay{At: float64(n) * (timeout + step), Left: left})
		if units*left < negligible {
			break
		}
		left *= p.Loss
	}
	return s
}
