// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"

	"crem.dev/crem/agent/fec"
)

// Code is how the parity of a FixedCode is made.
type Code uint8

// Codes of SDR-RDMA.
const (
	MDS Code = iota // any M of K+M may be lost
	XOR             // parity i is the sum of the packets j with j mod M = i: one of each such group may be lost
)

// FixedCode sends M parity packets with every K, whatever the loss is. A block that can not be decoded is asked for when the
// fallback timeout is over, Wait round trips after everything was sent, and its packets are sent again by selective repeat.
type FixedCode struct {
	K, M int
	Code Code
	Wait float64 // in round trips; 0.5 in SDR-RDMA
}

// SDR is the code that SDR-RDMA picks as balanced.
func SDR(c Code) FixedCode { return FixedCode{K: 32, M: 8, Code: c, Wait: 0.5} }

// Overhead is the parity octets over the octets of data.
func (f FixedCode) Overhead() float64 { return float64(f.M) / float64(f.K) }

// Completion of a message. XOR is only known for independent losses: runs of losses are taken for such.
func (f FixedCode) Completion(p Path, m Message) Mixture {
	packets, step := m.Packets(), p.PacketTime(m)
	blocks := math.Ceil(packets / float64(f.K))
	sent := (packets + math.Ceil(packets*f.Overhead())) * step
	fail := f.failure(p)
	none := blocks * math.Log1p(-fail)
	weight := -math.Expm1(none)
	again := float64(f.K)
	if weight > 0 {
		again *= max(blocks*fail/weight, 1) // blocks to be sent again, given that there is one
	}
	late := repeat(p, again, step, RTO*p.RTT)
	late.After += sent + (1+f.Wait)*p.RTT
	return Mixture{Usual: at(sent + p.RTT), Else: late, Weight: weight}
}

// failure is the probability that a block can not be decoded.
func (f FixedCode) failure(p Path) float64 {
	if f.Code == MDS {
		return tail(p, f.K+f.M, f.M)
	}
	two := fec.Tail((f.K+f.M-1)/f.M+1, 1, p.Loss)
	return -math.Expm1(float64(f.M) * math.Log1p(-two))
}

// tail is the probability that more than m of n packets in a row are lost.
func tail(p Path, n, m int) float64 {
	if p.runs() > 1 {
		return fec.BurstTail(n, m, p.Loss, p.Burst)
	}
	return fec.Tail(n, m, p.Loss)
}
