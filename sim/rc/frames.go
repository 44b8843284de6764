// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"encoding/binary"
	"math/rand/v2"

	"crem.dev/crem/agent/roce"
)

const (
	bthLen  = 12
	rethLen = 16
	aethLen = 4
	icrcLen = 4

	partition  = 0xffff // the default P_Key
	hopLimit   = 64
	unlimited  = 0x1f // syndrome of an ACK without credit limit
	nakCode    = 0x60 // syndrome of a NAK, plus the code
	ackRequest = 0x80

	idGaps = 16 // one Identification in so many is followed by a gap
)

// builder makes the frames of one queue pair.
type builder struct {
	model []byte // Ethernet, IP and UDP header
	qpn   roce.QPN
	tos   uint8
	id    uint16
	rand  *rand.Rand
}

func newBuilder(c *Config) builder {
	b := builder{qpn: c.Remote.QPN, tos: c.TOS, rand: rand.New(rand.NewPCG(c.Seed, uint64(c.Local.QPN)))}
	b.id = uint16(b.rand.Uint32())
	h := append(append([]byte{}, c.Remote.MAC[:]...), c.Local.MAC[:]...)
	src, dst := c.Local.Addr.Unmap(), c.Remote.Addr.Unmap()
	if src.Is4() {
		h = append(h, 0x08, 0x00, 0x45, 0, 0, 0, 0, 0, 0x40, 0, hopLimit, 17, 0, 0) // don't fragment
	} else {
		h = append(h, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 17, hopLimit)
	}
	h = append(append(h, src.AsSlice()...), dst.AsSlice()...)
	h = binary.BigEndian.AppendUint16(h, c.sourcePort())
	h = binary.BigEndian.AppendUint16(h, roce.Port)
	b.model = append(h, 0, 0, 0, 0)
	return b
}

// nextID returns the Identification of the next packet. As with Soft-RoCE it grows by one a packet, with gaps, and a retransmission has a new one.
func (b *builder) nextID() uint16 {
	b.id++
	if b.rand.Uint32()%idGaps == 0 {
		b.id += uint16(1 + b.rand.Uint32()%18)
	}
	return b.id
}

// open begins a packet with room for data octets and returns the whole frame with BTH and zeroed extension header, and the place of the data in it.
func (b *builder) open(mem []byte, op roce.Opcode, psn roce.PSN, ack bool, data int) (frame, place []byte) {
	pad := -data & 3
	payload := op.HeaderLen() + data + pad + icrcLen
	frame = roce.BuildHead(mem, b.model, payload, b.nextID(), b.tos, false, nil)
	head := len(frame)
	frame = frame[:head+payload]
	p := frame[head:]
	clear(p[:op.HeaderLen()])
	clear(p[op.HeaderLen()+data:])
	p[0], p[1] = byte(op), byte(pad<<4)
	binary.BigEndian.PutUint16(p[2:], partition)
	binary.BigEndian.PutUint32(p[4:], uint32(b.qpn))
	binary.BigEndian.PutUint32(p[8:], uint32(psn))
	if ack {
		p[8] |= ackRequest
	}
	return frame, p[op.HeaderLen() : op.HeaderLen()+data]
}

// payload returns BTH to ICRC of a frame that open made.
func (b *builder) payload(frame []byte) []byte { return frame[len(b.model):] }

// seal stores the ICRC.
func (b *builder) seal(frame []byte) []byte {
	p := b.payload(frame)
	binary.LittleEndian.PutUint32(p[len(p)-icrcLen:], roce.ICRC(frame[:len(b.model)], p))
	return frame
}

// putRETH writes the RDMA extended header behind the BTH.
func (b *builder) putRETH(frame []byte, address uint64, length int) {
	p := b.payload(frame)
	binary.BigEndian.PutUint64(p[bthLen:], address)
	binary.BigEndian.PutUint32(p[bthLen+8:], remoteKey)
	binary.BigEndian.PutUint32(p[bthLen+12:], uint32(length))
}

// putAETH writes the acknowledgement header behind the BTH.
func (b *builder) putAETH(frame []byte, syndrome uint8, msn uint32) {
	binary.BigEndian.PutUint32(b.payload(frame)[bthLen:], uint32(syndrome)<<24|msn&0xffffff)
}

// reth reads the RDMA extended header of a packet that has one.
func reth(p *roce.Packet) (address uint64, key, length uint32) {
	b := p.P()
	return binary.BigEndian.Uint64(b[bthLen:]), binary.BigEndian.Uint32(b[bthLen+8:]), binary.BigEndian.Uint32(b[bthLen+12:])
}
