// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

const (
	mixedRTT    = time.Millisecond
	mixedTick   = 860 * time.Nanosecond // a packet
	mixedK      = 32
	mixedWindow = 4096 // packets: 3.5 BDP
	mixedRTO    = 4 * time.Millisecond
	mixedAcks   = 32 // packets per ACK
	mixedFirst  = 1<<24 - 5000
	mixedStart  = 10 * time.Millisecond // the first packet is sent alone, the others when the sender function knows the path
)

// tried is how many decodes used a wrong copy: those that were delivered and those that a check refused.
func (s *mixed) tried() int { return s.wrong + int(s.crf.stats.RestoreVerifyFailures) }

// mixed is one run.
type mixed struct {
	t      *testing.T
	path   mixedPath
	rng    *rand.Rand
	now    time.Duration
	queue  mixedQueue
	order  uint64
	events int
	goal   int // packets to transfer

	csf     *csf.Flow
	csfEnv  *csf.Env
	csfActs []csf.Action
	crf     *Flow
	crfEnv  *Env
	crfActs []Action
	digest  bool
	naive   bool

	// Sender.
	next, una, newest int // counted from mixedFirst
	transmitted       int
	timer             time.Duration
	firstID           []uint16 // of the first copy of each packet
	firstAck          []bool
	id                uint16

	// Receiver.
	expected int
	nakSent  bool
	sinceAck int
	lossy    bool // the path is in a burst of losses
	wrong    int  // restored packets that are not the first copy
	corrupt  int  // packets accepted with wrong data
	naks     int
	kernel   *kernel        // InOrder
	arrived  map[string]int // held packets that wait, by their octets
	frame    []byte
}

type mixedKind uint8

const (
	toReceiver mixedKind = iota
	toCRF
	toCSF
	toSender
)

type mixedEvent struct {
	at    time.Duration
	order uint64
	kind  mixedKind
	b     []byte
	psn   int
	nak   bool
}

type mixedQueue []mixedEvent

func (q mixedQueue) Len() int { return len(q) }
func (q mixedQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q mixedQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *mixedQueue) Push(x any)   { *q = append(*q, x.(mixedEvent)) }
func (q *mixedQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}

func (s *mixed) after(d time.Duration, e mixedEvent) {
	s.order++
	e.at, e.order = s.now+d, s.order
	heap.Push(&s.queue, e)
}

func newMixed(t *testing.T, path mixedPath, mode mixedMode, seed uint64) *mixed {
	s := &mixed{
		t: t, path: path, rng: rand.New(rand.NewPCG(seed, 5)), now: begin, timer: roce.Never, digest: mode.digest, naive: !mode.rules,
		frame: make([]byte, 0, 1024), id: 100, arrived: map[string]int{},
	}
	d := wire.FlowDescriptor{Kind: wire.KindRoCEv2, Src: srcAddr, Dst: dstAddr, Label: testQPN}
	s.csfEnv = &csf.Env{Pool: fec.NewPool(64 << 20), Random: s.rng.Uint64}
	p := &csf.Params{
		K: mixedK, MaxM: 8, Epsilon: 1e-4, Schemes: []fec.Scheme{fec.Cauchy}, MaxRepairRatio: 1, Digest: mode.digest, PathMTU: 1500, FixedM: path.m,
	}
	s.csf = csf.New(s.now, d, []netip.AddrPort{gateway}, p, s.csfEnv)
	s.crfEnv = NewEnv(fec.NewPool(64 << 20))
	return s
}

// copyOf makes a copy of packet n: the data is the same each time, Identification and AckReq are not.
func (s *mixed) copyOf(n int, id uint16, ackReq bool) []byte {
	data := 352 + n*13%20*8 // 352 to 504 octets
	P := 12 + data + 4
	const ipUDP = 28
	b := s.frame[:14+ipUDP+P]
	clear(b)
	b[0], b[6], b[12] = 2, 2, 8
	ip := b[14:]
	ip[0], ip[1], ip[8], ip[9] = 0x45, 0x6a, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(ipUDP+P))
	binary.BigEndian.PutUint16(ip[4:], id)
	ip[6] = 0x40
	a, c := srcAddr.As4(), dstAddr.As4()
	copy(ip[12:], a[:])
	copy(ip[16:], c[:])
	binary.BigEndian.PutUint16(ip[20:], 50000)
	binary.BigEndian.PutUint16(ip[22:], roce.Port)
	binary.BigEndian.PutUint16(ip[24:], uint16(8+P))
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	bth := ip[ipUDP:]
	bth[0], bth[1], bth[2], bth[3] = byte(roce.SendOnly), 0x40, 0xff, 0xff
	binary.BigEndian.PutUint32(bth[4:], testQPN)
	binary.BigEndian.PutUint32(bth[8:], uint32(mixedFirst+n)&0xffffff)
	if ackReq {
		bth[8] = 0x80
	}
	x := uint64(n)*0x9e3779b97f4a7c15 + 1
	for i := 12; i < 12+data; i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(bth[i:], x)
	}
	binary.LittleEndian.PutUint32(bth[P-4:], roce.ICRC(b[:14+ipUDP], bth[:P]))
	return b
}

// drop says whether the path loses the next datagram.
func (s *mixed) drop() bool {
	if s.path.burst <= 1 {
		return s.rng.Float64() < s.path.loss
	}
	leave := 1 / s.path.burst
	enter := s.path.loss * leave / (1 - s.path.loss)
	if s.lossy {
		s.lossy = s.rng.Float64() >= leave
	} else {
		s.lossy = s.rng.Float64() < enter
	}
	return s.lossy
}

// run transfers n packets.
func (s *mixed) run(n int) {
	s.goal = n
	s.firstID, s.firstAck = make([]uint16, n), make([]bool, n)
	sendAt := s.now
	for s.una < n {
		at := min(s.csf.NextDeadline(), s.timer)
		if s.crf != nil {
			at = min(at, s.crf.NextDeadline())
		}
		if len(s.queue) > 0 {
			at = min(at, s.queue[0].at)
		}
		if s.canSend() {
			at = min(at, max(sendAt, s.now))
		}
		if at == roce.Never {
			s.t.Fatal("the simulation has stopped")
		}
		s.now = max(s.now, at)
		switch {
		case len(s.queue) > 0 && s.queue[0].at <= s.now:
			s.happen(heap.Pop(&s.queue).(mixedEvent))
		case s.timer <= s.now: // local ACK timeout
			s.next = s.una
			s.timer = s.now + mixedRTO
		case s.csf.NextDeadline() <= s.now:
			s.csf.Poll(s.now, &s.csfActs)
		case s.crf != nil && s.crf.NextDeadline() <= s.now:
			s.crf.Poll(s.now, &s.crfActs)
		case s.canSend() && sendAt <= s.now:
			s.transmit()
			if sendAt = s.now + mixedTick; s.next == 1 {
				sendAt = begin + mixedStart
			}
		}
		s.act()
		if s.now > begin+10*time.Minute {
			s.t.Fatalf("not done: una %d of %d", s.una, n)
		}
	}
}

// canSend keeps the first packets back until the flow is protected, so that what is measured is.
func (s *mixed) canSend() bool {
	if s.next > 0 && s.csf.State() != csf.Protecting && s.csf.State() != csf.Suspended {
		return false
	}
	return s.next < s.goal && s.next < s.una+mixedWindow
}

func (s *mixed) transmit() {
	n := s.next
	s.id++
	ackReq := s.id%5 == 0
	b := s.copyOf(n, s.id, ackReq)
	if n >= s.newest {
		s.firstID[n], s.firstAck[n] = s.id, ackReq
		s.newest = n + 1
	}
	s.next++
	s.transmitted++
	if s.timer == roce.Never {
		s.timer = s.now + mixedRTO
	}
	p, _ := roce.Parse(b)
	s.csf.HandleSource(s.now, &p, &s.csfActs)
	if !s.drop() {
		s.after(mixedRTT/2, mixedEvent{kind: toReceiver, b: append([]byte(nil), b...), psn: n})
	}
}

func (s *mixed) happen(e mixedEvent) {
	switch e.kind {
	case toReceiver:
		p, _ := roce.Parse(e.b)
		gaveUp := s.kernel != nil && s.crf != nil && s.judge(&p)
		if s.crf != nil {
			s.crf.HandleSource(s.now, &p, gaveUp, &s.crfActs)
		}
		if !gaveUp {
			s.receive(e.psn, e.b)
		}
	case toCRF:
		s.toCRF(e.b)
	case toCSF:
		s.toCSF(e.b)
	case toSender:
		s.csf.HandleAck(s.now, roce.PSN(mixedFirst).Add(e.psn-1))
		if e.psn > s.una {
			s.una = e.psn
			s.timer = s.now + mixedRTO
		}
		if e.nak {
			s.next = s.una
		}
		s.next = max(s.next, s.una)
	}
}

// judge is the kernel program; it says whether the packet is held.
func (s *mixed) judge(p *roce.Packet) bool {
	gaveUp, _ := s.kernel.judge(p, testMTU)
	if gaveUp {
		s.arrived[string(p.Head())+string(p.P())]++
	}
	return gaveUp
}

// receive is a go-back-N receiver.
func (s *mixed) receive(n int, frame []byte) {
	switch {
	case n == s.expected:
		want := s.copyOf(n, 0, false)
		P := len(want) - 42
		if len(frame) != len(want) || !bytes.Equal(frame[54:42+P-4], want[54:42+P-4]) {
			s.corrupt++
		}
		s.expected++
		s.nakSent = false
		if s.sinceAck++; s.sinceAck >= mixedAcks || s.expected == s.goal {
			s.answer(false)
		}
	case n > s.expected && !s.nakSent:
		s.nakSent = true
		s.answer(true)
	case n < s.expected:
		s.answer(false)
	}
}

func (s *mixed) answer(nak bool) {
	s.sinceAck = 0
	if nak {
		s.naks++
	}
	s.after(mixedRTT/2, mixedEvent{kind: toSender, psn: s.expected, nak: nak})
}

// act does what the machines want done.
func (s *mixed) act() {
	for _, a := range s.csfActs {
		if !s.drop() || s.crf == nil {
			s.after(mixedRTT/2, mixedEvent{kind: toCRF, b: append([]byte(nil), a.Msg...)})
		}
	}
	s.csfActs = s.csfActs[:0]
	for _, a := range s.crfActs {
		if a.Kind == Send {
			s.after(mixedRTT/2, mixedEvent{kind: toCSF, b: append([]byte(nil), a.Msg...)})
			continue
		}
		s.restored(append(append([]byte(nil), a.Head...), a.Payload...))
	}
	s.crfActs = s.crfActs[:0]
	if s.kernel != nil && s.crf != nil && s.kernel.hold && s.kernel.held == s.crf.HeldCount() {
		if next, ok := s.crf.Idle(); ok {
			s.kernel.hold, s.kernel.expected = false, next
		}
	}
	if s.events++; s.events%64 == 0 {
		s.csfEnv.Pool.Reclaim()
		s.crfEnv.Pool.Reclaim()
	}
}

// restored judges a restored packet and gives it to the receiver.
func (s *mixed) restored(frame []byte) {
	p, _ := roce.Parse(frame)
	n := p.PSN().Sub(roce.PSN(mixedFirst).Add(s.expected)) + s.expected
	if s.arrived[string(frame)] > 0 { // a held packet that is released
		s.arrived[string(frame)]--
	} else if n < 0 || n >= s.newest || !bytes.Equal(frame, s.copyOf(n, s.firstID[n], s.firstAck[n])) {
		s.wrong++
	}
	s.receive(n, frame)
}

func (s *mixed) toCRF(b []byte) {
	h, err := wire.ParseHeader(b)
	if err != nil {
		s.t.Fatal(err)
	}
	switch h.Type {
	case wire.TypeHello:
		m, _ := wire.ParseHello(b)
		if s.crf == nil {
			params := testParams()
			params.Delivery, params.Digest = Immediate, s.digest
			if s.kernel != nil {
				params.Delivery, params.MaxHold = InOrder, 20*mixedRTT
			}
			s.crf = New(s.now, testID, &m, gateway, local, &params, s.crfEnv)
			s.crf.mixCopies = s.naive
		}
		s.crf.HandleHello(s.now, &m, &s.crfActs)
	case wire.TypeParamUpdate:
		m, _ := wire.ParseParamUpdate(b)
		s.crf.HandleParamUpdate(s.now, &m, &s.crfActs)
	case wire.TypeRepair:
		m, err := wire.ParseRepair(b)
		if err != nil {
			s.t.Fatal(err)
		}
		s.crf.HandleRepair(s.now, &m, false, &s.crfActs)
	default:
		s.t.Fatalf("the CSF sent %v", h.Type)
	}
}

func (s *mixed) toCSF(b []byte) {
	h, _ := wire.ParseHeader(b)
	switch h.Type {
	case wire.TypeHelloAck:
		m, _ := wire.ParseHelloAck(b)
		s.csf.HandleHelloAck(s.now, gateway, &m, &s.csfActs)
	case wire.TypeParamAck:
		m, _ := wire.ParseParamAck(b)
		if m.Status != wire.StatusAccepted {
			s.t.Fatalf("configuration refused: %v", m.Status)
		}
		s.csf.HandleParamAck(s.now, gateway, &m, &s.csfActs)
	case wire.TypeRepairRequest:
		m, _ := wire.ParseRepairRequest(b)
		s.csf.HandleRequest(s.now, gateway, &m, &s.csfActs)
	case wire.TypeLossReport:
		m, _ := wire.ParseLossReport(b)
		s.csf.HandleLossReport(s.now, gateway, &m, &s.csfActs)
	default:
		s.t.Fatalf("the CRF sent %v", h.Type)
	}
}
