// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/binary"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/endpoint"
)

const (
	headLen = 14 + 20 + 8
	bthLen  = 12
	rethLen = 16
	icrcLen = 4

	partition  = 0xffff
	ackRequest = 0x80
)

var (
	writeOps = [4]roce.Opcode{roce.WriteMiddle, roce.WriteFirst, roce.WriteLast, roce.WriteOnly}
	sendOps  = [4]roce.Opcode{roce.SendMiddle, roce.SendFirst, roce.SendLast, roce.SendOnly}
)

// framer makes the frame of a packet: real headers and invariant CRC, and data of zeros, which are written once in its life.
type framer struct {
	model []byte // headers in front of P
	mem   []byte
	sum   int // where the CRC of the last frame lies
	id    uint16
	ops   *[4]roce.Opcode
}

func newFramer(data int, op endpoint.Operation) framer {
	h := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, tos, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0}
	h = append(append(h, source.AsSlice()...), destination.AsSlice()...)
	h = binary.BigEndian.AppendUint16(h, 0xc001)
	h = binary.BigEndian.AppendUint16(h, roce.Port)
	h = append(h, 0, 0, 0, 0)
	ops := &writeOps
	if op == endpoint.Send {
		ops = &sendOps
	}
	return framer{ops: ops, model: h, mem: make([]byte, headLen+bthLen+rethLen+data+3+icrcLen)}
}

// opcode of a packet.
func (f *framer) opcode(p *Packet) roce.Opcode {
	kind := 0
	if p.First {
		kind |= 1
	}
	if p.Last {
		kind |= 2
	}
	return f.ops[kind]
}

// build makes the frame of a packet with so many octets of data. fresh gives it an Identification and computes its CRC, otherwise it
// has those that it had when it was sent. The frame is valid until the next call.
func (f *framer) build(p *Packet, data int, fresh bool, field uint8) []byte {
	clear(f.mem[f.sum : f.sum+icrcLen])
	if fresh {
		f.id++
		p.id = f.id
	}
	op, pad := f.opcode(p), -data&3
	n := op.HeaderLen() + data + pad + icrcLen
	frame := roce.BuildHead(f.mem[:0], f.model, n, p.id, tos, false, nil)
	frame[15] = field // CE travels in the frame; the invariant CRC does not cover it, and nobody checks the header checksum
	frame = frame[:headLen+n]
	b := frame[headLen:]
	clear(b[:bthLen+rethLen])
	b[0], b[1] = byte(op), byte(pad<<4)
	binary.BigEndian.PutUint16(b[2:], partition)
	binary.BigEndian.PutUint32(b[4:], queuePair)
	binary.BigEndian.PutUint32(b[8:], uint32(psnOf(p.Seq)))
	if p.AckReq {
		b[8] |= ackRequest
	}
	if p.First && f.ops == &writeOps {
		binary.BigEndian.PutUint64(b[bthLen:], p.Seq<<12)
		binary.BigEndian.PutUint32(b[bthLen+12:], uint32(data))
	}
	if fresh {
		p.icrc = roce.ICRC(frame[:headLen], b)
	}
	f.sum = headLen + n - icrcLen
	binary.LittleEndian.PutUint32(frame[f.sum:], p.icrc)
	return frame
}
