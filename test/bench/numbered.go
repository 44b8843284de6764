// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
)

const (
	headLen = 14 + 20 + 8 // Ethernet, IPv4 and UDP header
	wordAt  = headLen + 8 // of a BTH: AckReq and PSN
	// askEvery is how often a packet asks for an acknowledgement: once in about a megabyte.
	askEvery = 1024
)

// numbered makes packets that differ in PSN and AckReq only, with a right invariant CRC. A CRC is linear, so that of a packet is that of the
// packet with zeros there, changed by what each octet of the word adds.
type numbered struct {
	model []byte
	zero  uint32
	add   [4][256]uint32
}

// newNumbered makes packets in the middle of an RDMA WRITE with the given octets of data.
func newNumbered(h frames.Headers, data int) *numbered {
	body := make([]byte, data)
	for i := range body {
		body[i] = byte(i*7 + i>>8)
	}
	n := &numbered{model: frames.RoCE{Headers: h, Opcode: roce.WriteMiddle, QPN: streamQPN, Data: body}.Frame()}
	binary.BigEndian.PutUint32(n.model[wordAt:], 0)
	n.zero = roce.ICRC(n.model[:headLen], n.model[headLen:])
	for i := range n.add {
		for v := range n.add[i] {
			n.model[wordAt+i] = byte(v)
			n.add[i][v] = roce.ICRC(n.model[:headLen], n.model[headLen:]) ^ n.zero
		}
		n.model[wordAt+i] = 0
	}
	return n
}

// set makes a copy of the model the packet of a PSN.
func (n *numbered) set(frame []byte, psn roce.PSN) {
	word := uint32(psn)
	if word%askEvery == 0 {
		word |= 1 << 31
	}
	binary.BigEndian.PutUint32(frame[wordAt:], word)
	crc := n.zero ^ n.add[0][word>>24] ^ n.add[1][word>>16&0xff] ^ n.add[2][word>>8&0xff] ^ n.add[3][word&0xff]
	binary.LittleEndian.PutUint32(frame[len(frame)-4:], crc)
}
