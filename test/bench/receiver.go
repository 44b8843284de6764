// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/lab/topology"
)

const (
	cremPort = 52000
	// reportedLoss makes the policy choose m = 2 for k = 32 and epsilon = 1e-4.
	reportedLoss = 0.0012
	reportEvery  = 20 * time.Millisecond
	ackEvery     = time.Millisecond
	// ackBehind keeps an acknowledgement behind what has surely left the gateway: its input queue and a batch hold less.
	ackBehind = 1024
	ethIPv4   = 0x0800
)

// receiver is the far end of the flow that leaves the gateway: it agrees to everything, reports losses that did not happen, and acknowledges as
// an RDMA endpoint does.
type receiver struct {
	fd       int
	headers  frames.Headers // of its messages
	acks     frames.Headers // of the endpoint's acknowledgements
	packets  *generator
	arrivals *sink

	flowID     uint32
	agent      netip.AddrPort
	configured atomic.Bool
	last       struct {
		expected, repairs      uint64
		lost                   float64
		acknowledged, reported time.Duration
	}
	stop atomic.Bool
	wait sync.WaitGroup
	err  error
}

// startReceiver starts the far end behind the sink's interface.
func startReceiver(ns *topology.Namespace, device string, far, uplink frames.MAC, packets *generator, arrivals *sink) (*receiver, error) {
	r := &receiver{
		headers: frames.Headers{SrcMAC: far, DstMAC: uplink, Src: topology.GwB4, SrcPort: cremPort, TOS: 2},
		acks:    frames.Headers{SrcMAC: far, DstMAC: uplink, Src: topology.HostB4, Dst: topology.HostA4, TOS: 2},
		packets: packets, arrivals: arrivals,
	}
	err := ns.Do(func() (err error) {
		// Of one protocol, so that the kernel asks it behind the sink: it costs the stream nothing.
		r.fd, err = openRaw(device, ethIPv4)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("receiver on %s: %w", device, err)
	}
	r.wait.Go(func() {
		r.err = r.run()
		_ = unix.Close(r.fd)
	})
	return r, nil
}

func (r *receiver) run() error {
	buf := make([]byte, 2048)
	poll := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}
	for !r.stop.Load() {
		if _, err := unix.Poll(poll, 1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		for {
			n, _, err := unix.Recvfrom(r.fd, buf, unix.MSG_DONTWAIT)
			if err != nil {
				break
			}
			if from, msg, ok := cremMessage(buf[:n]); ok {
				r.handle(from, msg)
			}
		}
		if err := r.tick(packet.Now()); err != nil {
			return err
		}
	}
	return nil
}

// cremMessage is the payload of a datagram to the CREM port.
func cremMessage(frame []byte) (from netip.AddrPort, msg []byte, ok bool) {
	if len(frame) < headLen || frame[14] != 0x45 || frame[23] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(frame[36:]) != cremPort {
		return from, nil, false
	}
	n := int(binary.BigEndian.Uint16(frame[38:])) - 8
	if n < 0 || headLen+n > len(frame) {
		return from, nil, false
	}
	from = netip.AddrPortFrom(netip.AddrFrom4([4]byte(frame[26:])), binary.BigEndian.Uint16(frame[34:]))
	return from, frame[headLen : headLen+n], true
}

// handle answers HELLO and PARAM_UPDATE.
func (r *receiver) handle(from netip.AddrPort, msg []byte) {
	h, err := wire.ParseHeader(msg)
	if err != nil {
		return
	}
	switch h.Type {
	case wire.TypeHello:
		x, err := wire.ParseHello(msg)
		if err != nil {
			return
		}
		r.flowID, r.agent = 1, from
		a := wire.HelloAck{
			FlowID: r.flowID, Kind: x.Flow.Kind, AF: x.Flow.AF(), Schemes: 1<<fec.SourceCopy | 1<<fec.Cauchy, MaxK: x.MaxK, MaxM: x.MaxM, MaxT: x.MaxT,
			MTU: x.MTU, Extensions: x.Extensions, Nonce: x.Nonce, MaxOpenBlocks: 64,
		}
		r.send(a.Append(nil))
	case wire.TypeParamUpdate:
		x, err := wire.ParseParamUpdate(msg)
		if err != nil {
			return
		}
		a := wire.ParamAck{FlowID: r.flowID, ConfigID: x.ConfigID, Status: wire.StatusAccepted}
		r.send(a.Append(nil))
		r.configured.Store(true)
	}
}

func (r *receiver) send(msg []byte) {
	h := r.headers
	h.Dst, h.DstPort = r.agent.Addr(), r.agent.Port()
	_, _ = unix.Write(r.fd, h.Frame(msg)) // a full queue loses it, as a network may
}

// tick acknowledges and reports.
func (r *receiver) tick(now time.Duration) error {
	l := &r.last
	if now-l.acknowledged >= ackEvery {
		l.acknowledged = now
		psn := roce.PSN(r.packets.newest.Load()).Add(-ackBehind)
		ack := frames.RoCE{Headers: r.acks, Opcode: roce.Acknowledge, QPN: backQPN, PSN: uint32(psn)}
		_, _ = unix.Write(r.fd, ack.Frame())
	}
	if !r.configured.Load() || now-l.reported < reportEvery {
		return nil
	}
	stream, repairs, err := r.arrivals.count()
	if err != nil {
		return err
	}
	if l.reported > 0 && stream > l.expected {
		expected := stream - l.expected
		l.lost += reportedLoss * float64(expected)
		lost := uint64(l.lost)
		l.lost -= float64(lost)
		report := wire.LossReport{
			FlowID: r.flowID, Interval: uint32((now - l.reported) / time.Microsecond), Expected: uint32(expected), Received: uint32(expected - lost),
			Restored: uint32(lost), RepairsReceived: uint32(withUnderWay(repairs - l.repairs)),
		}
		r.send(report.Append(nil))
	}
	l.reported, l.expected, l.repairs = now, stream, repairs
	return nil
}

// withUnderWay adds to the repair symbols of an interval what may still be in a queue: a CSF would take it for lost in congestion and send
// less. Here nothing is lost, and m is to stay what it is.
func withUnderWay(repairs uint64) uint64 { return repairs + repairs/4 + 256 }

// end stops the far end and waits.
func (r *receiver) end() error {
	r.stop.Store(true)
	r.wait.Wait()
	return r.err
}
