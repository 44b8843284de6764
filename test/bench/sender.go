// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/lab/topology"
)

const (
	maxMessages = 32 // behind one packet
	readEvery   = 8  // batches between two looks at the answers
)

// sender is the far end of the flow that arrives at the gateway: the project's own CSF, fed with the generator's packets.
type sender struct {
	fd      int
	flow    *csf.Flow
	env     csf.Env
	acts    []csf.Action
	out     []message
	model   []byte // headers of its messages
	heads   [4 * batchPackets][headLen]byte
	next    int
	buf     []byte
	batches int
	newest  roce.PSN

	protecting atomic.Bool
}

// newSender makes the far end with m repair symbols a block. device is the generator's interface.
func newSender(ns *topology.Namespace, device string, far, uplink frames.MAC, m int) (*sender, error) {
	s := &sender{buf: make([]byte, 2048)}
	err := ns.Do(func() (err error) {
		s.fd, err = openRaw(device, ethIPv4)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sender on %s: %w", device, err)
	}
	h := frames.Headers{SrcMAC: far, DstMAC: uplink, Src: topology.GwB4, Dst: topology.GwA4, SrcPort: cremPort, DstPort: cremPort}
	s.model = h.Frame(nil)
	s.env = csf.Env{Pool: fec.NewPool(64 << 20), Random: rand.Uint64}
	params := &csf.Params{
		K: 32, MaxM: 8, Epsilon: 1e-4, Schemes: []fec.Scheme{fec.Cauchy}, MaxRepairRatio: 0.25, Spread: true, Digest: true, PathMTU: uplinkMTU, FixedM: m,
	}
	d := wire.FlowDescriptor{Kind: wire.KindRoCEv2, Src: topology.HostB4, Dst: topology.HostA4, Label: streamQPN}
	s.flow = csf.New(packet.Now(), d, []netip.AddrPort{netip.AddrPortFrom(topology.GwA4, cremPort)}, params, &s.env)
	return s, nil
}

// begin reads answers and does what is due.
func (s *sender) begin(now time.Duration) {
	if s.batches++; s.batches%readEvery == 0 {
		s.read(now)
		// An endpoint would have acknowledged what left a while ago.
		s.flow.HandleAck(now, s.newest.Add(-ackBehind))
	}
	if s.flow.NextDeadline() <= now {
		s.flow.Poll(now, &s.acts)
	}
	s.protecting.Store(s.flow.State() == csf.Protecting)
}

func (s *sender) read(now time.Duration) {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_DONTWAIT)
		if err != nil {
			return
		}
		from, msg, ok := cremMessage(s.buf[:n])
		if !ok {
			continue
		}
		s.answer(now, from, msg)
	}
}

// answer gives the machine one message of the agent.
func (s *sender) answer(now time.Duration, from netip.AddrPort, msg []byte) {
	h, err := wire.ParseHeader(msg)
	if err != nil {
		return
	}
	switch h.Type {
	case wire.TypeHelloAck:
		if x, err := wire.ParseHelloAck(msg); err == nil {
			s.flow.HandleHelloAck(now, from, &x, &s.acts)
		}
	case wire.TypeParamAck:
		if x, err := wire.ParseParamAck(msg); err == nil {
			s.flow.HandleParamAck(now, from, &x, &s.acts)
		}
	case wire.TypeLossReport:
		if x, err := wire.ParseLossReport(msg); err == nil {
			x.RepairsReceived = uint32(withUnderWay(uint64(x.RepairsReceived)))
			s.flow.HandleLossReport(now, from, &x, &s.acts)
		}
	case wire.TypeRepairRequest:
		if x, err := wire.ParseRepairRequest(msg); err == nil {
			s.flow.HandleRequest(now, from, &x, &s.acts)
		}
	case wire.TypeClose:
		if x, err := wire.ParseClose(msg); err == nil {
			s.flow.HandleClose(now, from, &x, &s.acts)
		}
	}
}

// packet feeds the machine and returns what it wants sent.
func (s *sender) packet(now time.Duration, frame []byte) []message {
	p, reason := roce.Parse(frame)
	if reason == roce.OK {
		s.newest = p.PSN()
		s.flow.HandleSource(now, &p, &s.acts)
	}
	s.out = s.out[:0]
	for i := range s.acts {
		if len(s.out) < maxMessages {
			s.out = append(s.out, message{s.head(&s.acts[i]), s.acts[i].Msg})
		}
	}
	clear(s.acts)
	s.acts = s.acts[:0]
	return s.out
}

// head makes Ethernet, IP and UDP header of a message.
func (s *sender) head(a *csf.Action) []byte {
	h := s.heads[s.next][:]
	s.next = (s.next + 1) % len(s.heads)
	copy(h, s.model)
	h[15] = a.TOS
	binary.BigEndian.PutUint16(h[16:], uint16(28+len(a.Msg)))
	h[24], h[25] = 0, 0
	binary.BigEndian.PutUint16(h[24:], frames.Checksum(h[14:34]))
	binary.BigEndian.PutUint16(h[38:], uint16(8+len(a.Msg)))
	return h
}

func (s *sender) done() { s.env.Pool.Reclaim() }

func (s *sender) close() { _ = unix.Close(s.fd) }
