// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/test/frames"
)

// Section 4.4, rule 5: the ingress program takes every opcode to every port for what package roce takes it for, with each choice of transports; and a change
// acts on the next packet. Port 0, which stands for no port of veRoCE, is none.
func TestSection4_4_TransportsInTheKernel(t *testing.T) {
	w := newTwin(t, 1)
	qpn := uint32(100)
	for _, c := range []roce.Transports{
		{},
		{MRC: roce.MRCSettings{Enabled: true}},
		{VeRoCE: roce.VeRoCESettings{Enabled: true, Port: roce.VeRoCEPort}},
		{VeRoCE: roce.VeRoCESettings{Enabled: true, Port: 50000}, MRC: roce.MRCSettings{Enabled: true}},
		{},
	} {
		r := packet.Recognised{MRC: c.MRC.Enabled, VeRoCEPort: c.VeRoCE.Port}
		if err := w.real.SetTransports(r); err != nil {
			t.Fatal(err)
		}
		w.model.Transports = &c
		for op := range 256 {
			for _, port := range []uint16{roce.Port, roce.VeRoCEPort, 50000, 0} {
				qpn++
				frame := frames.RoCE{
					Headers: frames.Headers{Src: hostA, Dst: hostB}, Opcode: roce.Opcode(op), QPN: qpn, PSN: 5, Data: make([]byte, 64),
				}.Frame()
				binary.BigEndian.PutUint16(frame[36:], port)
				w.ingress(frame, 0)
				pkt, reason := c.Parse(frame)
				for _, kind := range wire.Kinds() {
					transport, space, _ := kind.Space()
					key := packet.FlowKey{Src: hostA, Dst: hostB, QPN: qpn, Response: space == roce.Response, Transport: uint8(transport)}
					in, source := roce.Request, false
					if reason == roce.OK {
						in, source = pkt.Source()
					}
					want := source && in == space && pkt.Transport() == transport
					if _, got := w.real.Seen(key); got != want {
						t.Errorf("%+v port %d opcode %#x: seen as %v: %v, want %v", r, port, op, kind, got, want)
					}
				}
			}
		}
	}
}

// Packets of a registered flow of each kind come with their flow, and those of the same queue pair of another transport do not. None of them is held while
// nothing is missing, whatever else octet 8 of the BTH says, where the PSN begins, and although a READ request of RoCEv2 takes many PSNs.
func TestTransportsAreFlowsOfTheirOwn(t *testing.T) {
	w := newTwin(t, 1)
	c := roce.Transports{VeRoCE: roce.VeRoCESettings{Enabled: true, Port: roce.VeRoCEPort}, MRC: roce.MRCSettings{Enabled: true}}
	if err := w.real.SetTransports(packet.Recognised{MRC: true, VeRoCEPort: roce.VeRoCEPort}); err != nil {
		t.Fatal(err)
	}
	w.model.Transports = &c
	for _, mode := range []packet.Mode{packet.Immediate, packet.InOrder} {
		qpn := 77 + uint32(mode)
		for _, transport := range roce.AllTransports() {
			w.register(packet.FlowKey{Src: hostA, Dst: hostB, QPN: qpn, Transport: uint8(transport)}, 0, 1024, mode)
		}
		for psn := range uint32(20) {
			request := frames.RoCE{Opcode: roce.SendOnly}
			if psn%4 == 3 {
				request = frames.RoCE{Opcode: roce.ReadRequest, DMALength: 1 << 20}
			}
			for _, p := range []frames.RoCE{request, {Opcode: roce.MRCWriteOnly}} {
				for _, p.DstPort = range []uint16{roce.Port, roce.VeRoCEPort} {
					p.Src, p.Dst, p.QPN, p.PSN, p.AckReq, p.Flags = hostA, hostB, qpn, psn, psn%2 == 0, 1<<(psn%7)
					w.ingress(p.Frame(), 0)
				}
			}
			w.drain()
		}
	}
	if s := w.model.Stats(); s[bpf.Held] != 0 || s[bpf.PassedInOrder] == 0 || s[bpf.PassedBehind] == 0 {
		t.Errorf("%v", s)
	}
}

// Section 4.4, rule 5: the program and package roce agree on packets of every transport that are cut, damaged or lengthened anywhere, with every choice of
// transports: on the verdict, on whose packet it is, and on what comes up.
func TestDamagedPacketsOfTransports(t *testing.T) {
	onEveryLink(t, 1, func(t *testing.T, w *twin) {
		random := rand.New(rand.NewPCG(9, 4))
		for _, hosts := range [][2]netip.Addr{{hostA, hostB}, {hostA6, hostB6}} {
			for _, kind := range wire.Kinds() {
				transport, space, _ := kind.Space()
				key := packet.FlowKey{Src: hosts[0], Dst: hosts[1], QPN: 77, Response: space == roce.Response, Transport: uint8(transport)}
				w.register(key, 0, 1024, packet.Mode(random.IntN(2)))
			}
		}
		opcodes := []roce.Opcode{roce.SendOnly, roce.ReadRequest, roce.ReadResponseOnly, roce.MRCWriteOnly, roce.MRCWriteFirst, roce.MRCSACK, roce.Acknowledge}
		for i := range 20000 {
			if i%1000 == 0 {
				c := roce.Transports{MRC: roce.MRCSettings{Enabled: random.IntN(2) == 0}}
				if random.IntN(3) > 0 {
					c.VeRoCE = roce.VeRoCESettings{Enabled: true, Port: []uint16{roce.VeRoCEPort, 50000}[random.IntN(2)]}
				}
				if err := w.real.SetTransports(packet.Recognised{MRC: c.MRC.Enabled, VeRoCEPort: c.VeRoCE.Port}); err != nil {
					t.Fatal(err)
				}
				w.model.Transports = &c
			}
			p := frames.RoCE{
				Headers: frames.Headers{Src: hostA, Dst: hostB, DstPort: []uint16{roce.Port, roce.VeRoCEPort, 50000}[random.IntN(3)], Checksum: random.IntN(2) == 0},
				Opcode:  opcodes[random.IntN(len(opcodes))], QPN: 77, PSN: uint32(i), DMALength: 5000, Data: make([]byte, 4*random.IntN(8)),
			}
			if random.IntN(2) == 0 {
				p.Src, p.Dst = hostA6, hostB6
			}
			frame := p.Frame()
			switch random.IntN(4) {
			case 0: // with less than that, nothing shows whose it was
				frame = frame[:min(max(random.IntN(len(frame)), 62), len(frame))]
			case 1:
				frame = append(frame, make([]byte, random.IntN(12))...)
			default:
				for range random.IntN(3) {
					frame[12+random.IntN(len(frame)-12)] ^= 1 << random.IntN(8)
				}
			}
			w.ingress(frame, 0)
			if i%8 == 0 {
				w.drain()
			}
		}
		if s := w.model.Stats(); s[bpf.PassedImmediate] == 0 || s[bpf.PassMalformed] == 0 || s[bpf.Held] == 0 {
			t.Errorf("not everything has come: %v", s)
		}
	})
}
