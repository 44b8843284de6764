// SPDX-License-Identifier: Apache-2.0

package multipath

import (
	"encoding/binary"

	"crem.dev/crem/agent/roce"
)

const (
	partition  = 0xffff // the default P_Key
	hopLimit   = 64
	ackRequest = 0x80
	udpLen     = 8
	lowestPath = 0xc000
)

// builder makes the frames of one queue pair.
type builder struct {
	model  []byte // Ethernet, IP and UDP header
	qpn    roce.QPN
	tos    uint8
	paths  uint16
	id     uint16
	ext    []byte // where extension headers are collected
	packet uint16 // frames built
}

func newBuilder(c *Config) builder {
	port := uint16(roce.Port)
	if c.Transport == roce.VeRoCE {
		port = c.Settings.VeRoCE.Port
	}
	h := append(append([]byte{}, c.RC.Remote.MAC[:]...), c.RC.Local.MAC[:]...)
	src, dst := c.RC.Local.Addr, c.RC.Remote.Addr
	if src.Is4() {
		h = append(h, 0x08, 0x00, 0x45, 0, 0, 0, 0, 0, 0x40, 0, hopLimit, 17, 0, 0) // don't fragment
	} else {
		h = append(h, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 17, hopLimit)
	}
	h = append(append(h, src.AsSlice()...), dst.AsSlice()...)
	h = append(h, 0, 0)
	h = binary.BigEndian.AppendUint16(h, port)
	return builder{model: append(h, 0, 0, 0, 0), qpn: c.RC.Remote.QPN, tos: c.RC.TOS, paths: uint16(c.Paths), id: uint16(c.RC.Seed)}
}

// frame builds a packet in mem: flags are those of BTH octet 8, ext the extension headers. It returns the whole frame without an ICRC, and the place of
// so many octets of data in it. Every frame takes the next path, and has the next Identification.
func (b *builder) frame(mem []byte, op roce.Opcode, flags uint8, psn roce.PSN, ext []byte, data int) (frame, place []byte) {
	b.packet++
	b.id++
	binary.BigEndian.PutUint16(b.model[len(b.model)-udpLen:], lowestPath|b.packet%b.paths)
	pad := -data & 3
	from := bthLen + len(ext)
	frame = roce.BuildHead(mem, b.model, from+data+pad+icrcLen, b.id, b.tos, false, nil)
	head := len(frame)
	frame = frame[:head+from+data+pad+icrcLen]
	p := frame[head:]
	clear(p[from+data:])
	p[0], p[1] = byte(op), byte(pad<<4)
	binary.BigEndian.PutUint16(p[2:], partition)
	binary.BigEndian.PutUint32(p[4:], uint32(b.qpn))
	binary.BigEndian.PutUint32(p[8:], uint32(psn))
	p[8] |= flags
	copy(p[bthLen:], ext)
	return frame, p[from : from+data]
}

// seal stores the ICRC.
func (b *builder) seal(frame []byte) []byte {
	p := frame[len(b.model):]
	binary.LittleEndian.PutUint32(p[len(p)-icrcLen:], roce.ICRC(frame[:len(b.model)], p))
	return frame
}
