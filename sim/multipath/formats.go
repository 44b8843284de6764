// SPDX-License-Identifier: Apache-2.0

package multipath

import (
	"encoding/binary"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/endpoint"
)

// place is where the data of a packet belongs.
type place struct {
	message uint64 // its number; of one that was read, as many low bits as the format has
	offset  int    // octets
	size    int    // of the message; of one that was read, 0 where the packet does not tell
	first   bool   // of the message
}

// format is how a transport writes what its machine says.
type format interface {
	// opcode is that of a data packet.
	opcode(first, last bool) roce.Opcode
	// appendPlace appends the extension headers of a data packet.
	appendPlace(dst []byte, at *place) []byte
	// place reads them, and returns what follows in P; false for a packet that no end of ours sends.
	place(p *roce.Packet) (at place, rest []byte, ok bool)
	// messageBits is how many bits of a message's number they carry.
	messageBits() int
	// appendAnswer appends what follows the BTH in an answer to packets of a PSN space, and returns opcode and sequence number for the BTH.
	appendAnswer(dst []byte, a *endpoint.Packet, of roce.Space, n numbers) (op roce.Opcode, seq uint64, all []byte)
	// answers is the PSN space that an answer is about.
	answers(op roce.Opcode) roce.Space
	// answer reads an answer. near is a sequence number from which those in it are less than half the PSN space away.
	answer(p *roce.Packet, n numbers, near uint64) (endpoint.Packet, bool)
}

// numbers are the sequence numbers of one direction, which begin at 0, as PSNs. Both PSN spaces of a direction begin with the same one: only the opcode
// tells which a number is of.
type numbers struct{ first roce.PSN }

// psn returns the PSN of a sequence number; that of the number before 0 is the one before the first.
func (n numbers) psn(seq uint64) roce.PSN { return n.first.Add(int(seq & 0xffffff)) }

// seq returns the sequence number of a PSN that is nearest to another one. It may be negative.
func (n numbers) seq(p roce.PSN, near uint64) int64 { return int64(near) + int64(p.Sub(n.psn(near))) }

const (
	bthLen  = 12
	rethLen = 16
	icrcLen = 4

	remoteKey = 0x00c0ffee
)

// part is the place of a packet in its message, as the opcodes of RDMA WRITE follow each other: FIRST, MIDDLE, LAST, LAST with immediate, ONLY.
func part(first, last bool) roce.Opcode {
	switch {
	case first && last:
		return 4
	case last:
		return 2
	case first:
		return 0
	}
	return 1
}

// appendRETH appends the RDMA extended header.
func appendRETH(dst []byte, address uint64, length int) []byte {
	dst = binary.BigEndian.AppendUint64(dst, address)
	dst = binary.BigEndian.AppendUint32(dst, remoteKey)
	return binary.BigEndian.AppendUint32(dst, uint32(length))
}

// readRETH reads it; false for the memory of another.
func readRETH(b []byte) (address uint64, length int, ok bool) {
	return binary.BigEndian.Uint64(b), int(binary.BigEndian.Uint32(b[12:])), binary.BigEndian.Uint32(b[8:]) == remoteKey
}
