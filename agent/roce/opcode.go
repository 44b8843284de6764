// SPDX-License-Identifier: Apache-2.0

package roce

import "fmt"

// Opcode is octet 0 of the BTH: the transport class in the upper three bits, the operation in the lower five.
type Opcode uint8

// Transport classes (upper three bits of an opcode).
const (
	ClassRC  Opcode = 0x00 // Reliable Connection
	ClassUC  Opcode = 0x20 // Unreliable Connection
	ClassRD  Opcode = 0x40 // Reliable Datagram
	ClassUD  Opcode = 0x60 // Unreliable Datagram
	ClassCNP Opcode = 0x80 // congestion notification
	ClassXRC Opcode = 0xa0 // Extended Reliable Connection
	// ClassPrivate and above belong to manufacturers: never a source of a RoCEv2 flow.
	ClassPrivate Opcode = 0xc0

	classMask     Opcode = 0xe0
	operationMask Opcode = 0x1f
)

// Operations of the RC class. Those of the other classes are the class added to the same operation,
// as in ClassXRC + SendFirst.
const (
	SendFirst          Opcode = 0x00
	SendMiddle         Opcode = 0x01
	SendLast           Opcode = 0x02
	SendLastImm        Opcode = 0x03
	SendOnly           Opcode = 0x04
	SendOnlyImm        Opcode = 0x05
	WriteFirst         Opcode = 0x06
	WriteMiddle        Opcode = 0x07
	WriteLast          Opcode = 0x08
	WriteLastImm       Opcode = 0x09
	WriteOnly          Opcode = 0x0a
	WriteOnlyImm       Opcode = 0x0b
	ReadRequest        Opcode = 0x0c
	ReadResponseFirst  Opcode = 0x0d
	ReadResponseMiddle Opcode = 0x0e
	ReadResponseLast   Opcode = 0x0f
	ReadResponseOnly   Opcode = 0x10
	Acknowledge        Opcode = 0x11
	AtomicAcknowledge  Opcode = 0x12
	CompareSwap        Opcode = 0x13
	FetchAdd           Opcode = 0x14
	SendLastInv        Opcode = 0x16
	SendOnlyInv        Opcode = 0x17
	Flush              Opcode = 0x1c
	AtomicWrite        Opcode = 0x1d

	// CNP is the RoCEv2 congestion notification packet, the only opcode of its class.
	CNP Opcode = 0x81
)

// Opcodes of MRC, from two public implementations that agree. They lie among those that RoCEv2 leaves to manufacturers, and mean this only in a
// packet whose Transport is MRC.
const (
	MRCWriteFirst       Opcode = 0xc6
	MRCWriteMiddle      Opcode = 0xc7
	MRCWriteLast        Opcode = 0xc8
	MRCWriteLastImm     Opcode = 0xc9
	MRCWriteOnly        Opcode = 0xca
	MRCWriteOnlyImm     Opcode = 0xcb
	MRCAcknowledge      Opcode = 0xd1 // of the transport layer: the result of a request
	MRCEndpointRequest  Opcode = 0xd8
	MRCEndpointResponse Opcode = 0xd9
	MRCSACK             Opcode = 0xdc // of the reliability layer, as the two that follow
	MRCNACK             Opcode = 0xdd
	MRCProbe            Opcode = 0xde
)

// Space is one of the two PSN spaces that one direction of a queue pair carries.
type Space uint8

const (
	// Request packets are numbered by the side that sends them.
	Request Space = iota
	// Response packets (READ responses and ATOMIC acknowledgements) are numbered by the requests of the other side.
	Response
)

// String returns "request" or "response".
func (s Space) String() string {
	if s == Response {
		return "response"
	}
	return "request"
}

// Class returns the transport class of the opcode.
func (o Opcode) Class() Opcode { return o & classMask }

// Operation returns the opcode without its class, comparable with the constants of the RC class.
func (o Opcode) Operation() Opcode { return o & operationMask }

// Space returns the PSN space that a packet of this opcode takes a PSN of. It is false for what is never a source
// packet: ACK and NAK, CNP, datagrams (RD, UD), reserved opcodes, and every opcode from 0xc0 on (Section 4.4).
func (o Opcode) Space() (Space, bool) {
	k := &kinds[o]
	return k.space, k.source
}

// HeaderLen returns the octets of the BTH and the extension headers, so the offset of the data in P. It is 0 for an
// opcode whose layout is unknown.
func (o Opcode) HeaderLen() int { return int(kinds[o].headers) }

// Starts says that the opcode begins a message: FIRST, ONLY, and the requests that are one packet.
func (o Opcode) Starts() bool { return kinds[o].part == first || kinds[o].part == only }

// Middle says that the opcode is the inner part of a message.
func (o Opcode) Middle() bool { return kinds[o].part == middle }

// Ends says that the opcode completes a message: LAST, ONLY, and the requests that are one packet.
func (o Opcode) Ends() bool { return kinds[o].part == last || kinds[o].part == only }

// Answered says that the opcode is a request whose answer takes its PSNs in the response space of the other
// direction: READ, ATOMIC, and the two operations that are answered like a READ (FLUSH, ATOMIC WRITE).
func (o Opcode) Answered() bool { return kinds[o].answered }

// String returns the class and the operation, as in "RC WRITE_FIRST"; an unknown opcode is its number.
func (o Opcode) String() string {
	k := &kinds[o]
	if k.name == "" {
		return fmt.Sprintf("opcode 0x%02x", uint8(o))
	}
	return k.name
}
