// SPDX-License-Identifier: Apache-2.0

package roce

// Transport is a protocol whose packets CREM can protect (Section 4.4). All have a BTH and an ICRC; they differ in what tells them apart, in
// how they number, and in whether their packets vary the UDP source port.
type Transport uint8

// Transports.
const (
	// RoCEv2 is UDP to port 4791 with an opcode below 0xc0.
	RoCEv2 Transport = iota
	// VeRoCE is UDP to a port of its own. It has the opcodes of RC for what carries data; READ requests consume one PSN.
	VeRoCE
	// MRC is the Multipath Reliable Connection: UDP to port 4791 with opcodes from 0xc6 on. It has RDMA WRITE only, and one PSN space.
	MRC
	transports
)

var transportNames = [transports]string{"RoCEv2", "veRoCE", "MRC"}

// String returns the transport's name.
func (t Transport) String() string {
	if t < transports {
		return transportNames[t]
	}
	return "unknown transport"
}

// AllTransports returns every transport that is defined.
func AllTransports() [transports]Transport { return [...]Transport{RoCEv2, VeRoCE, MRC} }

// Multipath says that packets of one flow vary the UDP source port, so that they take several paths: that one packet comes after a later one
// proves nothing, receivers take them in any order, and a restored packet needs the port that it was sent with.
func (t Transport) Multipath() bool { return t != RoCEv2 }

// Space returns the PSN space that a packet of this transport and opcode takes a PSN of; false for what is never a source packet.
func (t Transport) Space(o Opcode) (Space, bool) {
	switch t {
	case RoCEv2:
		return o.Space()
	case VeRoCE:
		space, ok := o.Space()
		return space, ok && o.Class() == ClassRC
	case MRC:
		return Request, o >= MRCWriteFirst && o <= MRCWriteOnlyImm
	default:
		return Request, false
	}
}

// Overhead returns the most octets that P has beside its data. The extension headers of veRoCE are known by name and size, not which packet has
// which: all that can stand in one are counted.
func (t Transport) Overhead() int {
	switch t {
	case VeRoCE:
		const msneth, poeth, rqeth = 4, 4, 4
		return bthLen + msneth + poeth + rqeth + rethLen + immDtLen + icrcLen
	case MRC:
		return bthLen + methLen + tsethLen + rethLen + immDtLen + icrcLen
	default:
		return bthLen + rethLen + immDtLen + icrcLen
	}
}

// VeRoCEPort is the UDP destination port that public descriptions give for veRoCE.
const VeRoCEPort = 4794

// Transports says which transports beside RoCEv2 are recognised, and what is not settled in public about them. The nil Transports and the zero
// one know RoCEv2 alone. It is immutable once it is in use.
type Transports struct {
	VeRoCE VeRoCESettings
	MRC    MRCSettings
}

// VeRoCESettings is how veRoCE is recognised and read.
type VeRoCESettings struct {
	Enabled bool
	Port    uint16 // UDP destination port, another than Port
	// Retransmission is the bit of BTH octet 8 that is set in a retransmission, as a mask; 0: not known.
	Retransmission uint8
	// SACK, ResponseACK and ResponseSACK are opcodes of acknowledgements that RC does not have; 0: not known, and such packets are not read.
	SACK, ResponseACK, ResponseSACK Opcode
}

// MRCSettings is how MRC is recognised and read.
type MRCSettings struct {
	Enabled bool
	// Retransmission is the bit of BTH octet 8 that is set in a retransmission, as a mask; 0: not known.
	Retransmission uint8
}

// port returns the transport that a UDP destination port stands for, RoCEv2 where only the opcode tells it from MRC.
func (t *Transports) port(port uint16) (Transport, bool) {
	switch {
	case port == Port:
		return RoCEv2, true
	case t != nil && t.VeRoCE.Enabled && port == t.VeRoCE.Port:
		return VeRoCE, true
	}
	return RoCEv2, false
}

// retransmission returns the mask of the flag in BTH octet 8, 0 where there is none or it is not known.
func (t *Transports) retransmission(of Transport) uint8 {
	switch of {
	case VeRoCE:
		return t.VeRoCE.Retransmission &^ ackRequest
	case MRC:
		return t.MRC.Retransmission &^ ackRequest
	default:
		return 0
	}
}

// acknowledges returns the space that a veRoCE opcode acknowledges, false for other packets.
func (s *VeRoCESettings) acknowledges(o Opcode) (Space, bool) {
	switch {
	case o == Acknowledge || s.SACK != 0 && o == s.SACK:
		return Request, true
	case s.ResponseACK != 0 && o == s.ResponseACK, s.ResponseSACK != 0 && o == s.ResponseSACK:
		return Response, true
	}
	return Request, false
}
