// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"encoding/binary"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// identification watches how the sender chooses the IPv4 Identification (Section 6.5), by packets that came right after each
// other. The Identification itself is always solved for, it is unique; the prediction is a check on it that adds up to 16 bits to
// the 16 that solving leaves.
type identification struct {
	last       uint16
	constant   int // packets in a row with the Identification of the one before
	sequential int // packets in a row with one that is larger by 1 to maxStep
}

const (
	maxStep  = 1024 // other flows of the host may take Identifications in between
	idProven = 16   // packets in a row that prove a pattern
)

func (d *identification) take(adjacent bool, pkt *roce.Packet) {
	id := pkt.ID()
	if adjacent {
		switch step := id - d.last; {
		case step == 0:
			d.constant, d.sequential = min(d.constant+1, idProven), 0
		case step <= maxStep:
			d.constant, d.sequential = 0, min(d.sequential+1, idProven)
		default:
			d.constant, d.sequential = 0, 0
		}
	}
	d.last = id
}

// idOutcome is what became of the Identification of a restored packet.
type idOutcome uint8

const (
	idSolved   idOutcome = iota // no prediction
	idConstant                  // as predicted: the sender's constant
	idWindow                    // as predicted: between the neighbours'
	idRefused                   // not as predicted
)

// compare holds a solved Identification against the prediction from the nearest neighbours whose Identification is known; hasLow
// and hasHigh say that there is one before and after.
func (d *identification) compare(id, low, high uint16, hasLow, hasHigh bool) idOutcome {
	switch {
	case d.constant == idProven && (!hasLow || low == d.last) && (!hasHigh || high == d.last):
		if id == d.last {
			return idConstant
		}
		return idRefused
	case d.sequential == idProven && hasLow && hasHigh && high-low >= 1 && high-low <= maxStep:
		if id-low >= 1 && id-low < high-low {
			return idWindow
		}
		return idRefused
	}
	return idSolved
}

// idOf returns the Identification of the packet in a cell; false for IPv6.
func idOf(c *fec.Cell) (uint16, bool) {
	const offset, version = roce.EthernetLen + 4, roce.EthernetLen
	h := c.Head()
	if len(h) < offset+2 || h[version]>>4 != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint16(h[offset:]), true
}
