// SPDX-License-Identifier: Apache-2.0

// Package fake has the packet I/O of a node in memory: a network of nodes with lossy paths, and a model of the kernel
// programs. The model is also the oracle of the real ones' tests.
package fake

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
)

// Verdict is what the ingress program does with a frame.
type Verdict int

// Verdicts.
const (
	Pass Verdict = iota
	Drop
)

// Meta is what the kernel knows of a frame besides its octets.
type Meta struct {
	Ifindex int
	VLAN    bool // a tag was taken off
	Segment int  // a super-packet's segment size, 0: none
}

// Program is the model of the ingress program with its maps. It is safe for concurrent use.
type Program struct {
	StaleAfter time.Duration    // as bpf.Config.StaleAfter; 0: never
	MaxFlows   int              // 0: no bound
	SlotOctets int              // longest frame that fits a slot; 0: any
	Transports *roce.Transports // that are recognised beside RoCEv2; set before packets come

	now func() time.Duration

	mu       sync.Mutex
	index    map[packet.FlowKey]int
	flows    []*flow // by index
	free     []int   // indices to use again, the longest unused first; only with a bound on flows
	seen     map[packet.FlowKey]time.Duration
	rings    []*Ring
	bypass   bool
	domains  []bpf.Domain
	local    map[netip.Addr]bool
	counters [bpf.Reasons]uint64
}

var _ packet.Holder = (*Program)(nil)

type flow struct {
	key    packet.FlowKey
	live   bool
	worker int
	mtu    int
	mode   packet.Mode
	word   atomic.Uint64
	missed atomic.Uint64
	from   uint32 // PSNs from..to-1 will be used by responses
	to     uint32
	inside bool
}

// NewProgram makes a program with a ring of slots for each worker, reading the time from now.
func NewProgram(workers, slots int, now func() time.Duration) *Program {
	p := &Program{
		now: now, index: map[packet.FlowKey]int{}, seen: map[packet.FlowKey]time.Duration{}, local: map[netip.Addr]bool{},
	}
	for range workers {
		p.rings = append(p.rings, &Ring{program: p, size: slots})
	}
	return p
}

// Ring is the ring of a worker.
func (p *Program) Ring(worker int) *Ring { return p.rings[worker] }

// Stats are the counters.
func (p *Program) Stats() bpf.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counters
}

// SetDomains is bpf.Objects.SetDomains without its checks.
func (p *Program) SetDomains(domains []bpf.Domain, local []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.domains = domains
	p.local = map[netip.Addr]bool{}
	for _, a := range local {
		p.local[a] = true
	}
}

// RegisterFlow implements packet.Holder.
func (p *Program) RegisterFlow(key packet.FlowKey, worker, mtu int, mode packet.Mode) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.index[key]; ok {
		return 0, bpf.ErrFlowExists
	}
	if p.MaxFlows > 0 && len(p.index) >= p.MaxFlows {
		return 0, bpf.ErrFlowTableFull
	}
	if worker < 0 || worker >= len(p.rings) || mtu < 256 || mtu > 4096 {
		return 0, fmt.Errorf("fake: worker %d, RDMA MTU %d", worker, mtu)
	}
	f := &flow{key: key, live: true, worker: worker, mtu: mtu, mode: mode}
	f.word.Store(uint64(packet.LearnBit))
	index := len(p.flows)
	if p.MaxFlows > 0 && index >= p.MaxFlows {
		index, p.free = p.free[0], p.free[1:]
		p.flows[index] = f
	} else {
		p.flows = append(p.flows, f)
	}
	p.index[key] = index
	return index, nil
}

// UnregisterFlow implements packet.Holder.
func (p *Program) UnregisterFlow(index int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if index < 0 || index >= len(p.flows) || !p.flows[index].live {
		return fmt.Errorf("fake: no flow has index %d", index)
	}
	p.flows[index].live = false
	p.free = append(p.free, index)
	delete(p.index, p.flows[index].key)
	return nil
}

// Flows is the number of registered flows.
func (p *Program) Flows() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.index)
}

// Forget ends what a dead agent left, as bpf.Load does: its flows pass from here on, its frames are skipped, no bypass is set.
func (p *Program) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.index)
	p.flows, p.free, p.bypass = nil, nil, false
	for _, r := range p.rings {
		r.slots, r.delivered, r.beat = nil, 0, 0
	}
}

// UpdateFlow implements packet.Holder.
func (p *Program) UpdateFlow(index, mtu int, mode packet.Mode) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if index < 0 || index >= len(p.flows) || !p.flows[index].live {
		return fmt.Errorf("fake: no flow has index %d", index)
	}
	f := p.flows[index]
	f.mtu = mtu
	if f.mode != mode {
		f.mode = mode
		f.word.Store(uint64(packet.Word(f.word.Load()).Relearn()))
	}
	return nil
}

func (p *Program) flow(index int) *flow {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flows[index]
}

// Word implements packet.Holder.
func (p *Program) Word(index int) *atomic.Uint64 { return &p.flow(index).word }

// Missed implements packet.Holder.
func (p *Program) Missed(index int) uint64 { return p.flow(index).missed.Load() }

// SetSure implements packet.Holder.
func (p *Program) SetSure(index int, from, to uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flows[index].from, p.flows[index].to = from, to
}

// HandBack implements packet.Holder.
func (p *Program) HandBack(index int, held uint64, next uint32, inside bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.flows[index]
	w := packet.Word(f.word.Load())
	if !w.Hold() || w.Held() != held&packet.HeldMask {
		return false
	}
	f.inside = inside
	return f.word.CompareAndSwap(uint64(w), uint64(w.InOrderAt(next)))
}

// Beat implements packet.Holder.
func (p *Program) Beat(worker int, now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rings[worker].beat = now
}

// SetBypass implements packet.Holder.
func (p *Program) SetBypass(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bypass = on
}

// Seen implements packet.Holder.
func (p *Program) Seen(key packet.FlowKey) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.seen[key]
	return p.now() - at, ok
}

// Ingress judges a frame that arrives at an uplink. The program keeps a copy of what it needs.
func (p *Program) Ingress(frame []byte, m Meta) Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pkt, reason := p.Transports.Parse(frame); reason != roce.NotRoCE {
		return p.roce(frame, &pkt, reason, m)
	}
	return p.crem(frame, m)
}

func (p *Program) pass(r bpf.Reason) Verdict {
	p.counters[r]++
	return Pass
}

func (p *Program) drop(r bpf.Reason) Verdict {
	p.counters[r]++
	return Drop
}

func (p *Program) roce(frame []byte, pkt *roce.Packet, reason roce.Reason, m Meta) Verdict {
	switch {
	case reason == roce.VLAN || m.VLAN:
		return p.pass(bpf.PassVLAN)
	case reason == roce.Fragment:
		return p.pass(bpf.PassFragment)
	case reason == roce.IPOptions:
		return p.pass(bpf.PassOptions)
	case reason == roce.ExtensionHeader:
		return p.pass(bpf.PassExtension)
	case m.Segment != 0:
		return p.pass(bpf.PassGSO)
	case reason != roce.OK:
		return p.pass(bpf.PassMalformed)
	}
	space, source := pkt.Source()
	if !source {
		return Pass
	}
	key := packet.FlowKey{
		Src: pkt.Src(), Dst: pkt.Dst(), QPN: uint32(pkt.QPN()), Response: space == roce.Response, Transport: uint8(pkt.Transport()),
	}
	index, ok := p.index[key]
	if !ok {
		p.seen[key] = p.now()
		return p.pass(bpf.Unregistered)
	}
	return p.judge(index, pkt, frame, m)
}

// missed passes a packet without a copy.
func (p *Program) missed(f *flow, psn roce.PSN, n int, why bpf.Reason) Verdict {
	p.rings[f.worker].missed++
	f.missed.Add(1)
	w := packet.Word(f.word.Load())
	if f.mode == packet.InOrder && (w.Learn() || psn.Sub(roce.PSN(w.Expected())) >= 0) {
		f.word.Store(uint64(w.InOrderAt(uint32(psn.Add(n)))))
	}
	return p.pass(why)
}

func (p *Program) judge(index int, pkt *roce.Packet, frame []byte, m Meta) Verdict {
	f := p.flows[index]
	ring := p.rings[f.worker]
	psn, n := pkt.PSN(), roce.Advance(pkt, f.mtu)
	switch {
	case p.bypass:
		return p.missed(f, psn, n, bpf.OpenBypass)
	case p.stale(ring):
		return p.missed(f, psn, n, bpf.OpenStale)
	case p.SlotOctets > 0 && len(frame) > p.SlotOctets:
		return p.missed(f, psn, n, bpf.OpenTooLong)
	case len(ring.slots) >= ring.size:
		return p.missed(f, psn, n, bpf.OpenRingFull)
	}
	if f.mode == packet.Immediate {
		ring.put(frame, m, index, 0)
		return p.pass(bpf.PassedImmediate)
	}
	w := packet.Word(f.word.Load())
	ahead := psn.Sub(roce.PSN(w.Expected()))
	switch {
	case !w.Learn() && ahead < 0:
		ring.put(frame, m, index, packet.Behind)
		return p.pass(bpf.PassedBehind)
	case !w.Learn() && (w.Hold() || ahead > 0 && f.lost(pkt, ahead)):
		held := (w.Held() + 1) & packet.HeldMask
		f.word.Store(uint64(packet.HoldBit) | held<<24 | uint64(w.Expected()))
		ring.put(frame, m, index, packet.Held)
		return p.drop(bpf.Held)
	}
	flags := packet.FrameFlags(0)
	if w.Learn() {
		flags = packet.Learned
	}
	f.word.Store(uint64(w.InOrderAt(uint32(psn.Add(n)))))
	if f.key.Response {
		f.inside = !pkt.Opcode().Ends()
	}
	ring.put(frame, m, index, flags)
	return p.pass(bpf.PassedInOrder)
}

func (p *Program) stale(r *Ring) bool {
	return p.StaleAfter > 0 && p.now()-r.beat > p.StaleAfter
}

// lost tells whether some of the ahead PSNs before the packet must have been sent.
func (f *flow) lost(pkt *roce.Packet, ahead int) bool {
	if !f.key.Response || f.inside || !pkt.Opcode().Starts() {
		return true
	}
	expected := pkt.PSN().Add(-ahead)
	for psn, sure := roce.PSN(f.from), 0; psn != roce.PSN(f.to) && sure < 1<<24; psn, sure = psn.Add(1), sure+1 {
		if d := psn.Sub(expected); d >= 0 && d < ahead {
			return true
		}
	}
	return false
}

// crem judges a frame that is no RoCEv2 packet.
func (p *Program) crem(frame []byte, m Meta) Verdict {
	d, ok := parseDatagram(frame)
	if !ok || m.VLAN || d.tagged {
		return Pass
	}
	for i := range p.domains {
		dom := &p.domains[i]
		if !contains(dom.Ports, d.to.Port()) {
			continue
		}
		switch {
		case d.fragment:
			return p.drop(bpf.BoundaryFragment)
		case !within(dom.Members, d.from.Addr()):
			return p.drop(bpf.BoundarySource)
		case within(dom.Served, d.to.Addr()) && !p.local[d.to.Addr()]:
			return p.take(dom.ID, frame, &d, m)
		}
	}
	return Pass
}

func (p *Program) take(domain uint32, frame []byte, d *datagram, m Meta) Verdict {
	if !d.plain || len(d.payload) < 8 {
		return p.pass(bpf.PathPassed)
	}
	ring := p.rings[messageWorker(d.payload, len(p.rings))]
	if p.bypass || p.stale(ring) {
		return p.pass(bpf.PathPassed)
	}
	segment, flags := len(d.payload), packet.Taken
	if m.Segment > 0 && m.Segment < len(d.payload) {
		segment, flags = m.Segment, packet.Taken|packet.Segment
	}
	head := frame[:d.head]
	for rest := d.payload; len(rest) > 0; rest = rest[min(segment, len(rest)):] {
		if len(ring.slots) >= ring.size {
			return p.drop(bpf.PathDropped)
		}
		message := append(append([]byte{}, head...), rest[:min(segment, len(rest))]...)
		ring.put(message, m, packet.NoFlow, flags)
		ring.slots[len(ring.slots)-1].Domain = domain
		p.counters[bpf.PathTaken]++
	}
	return Drop
}

func contains(ports []uint16, port uint16) bool {
	for _, p := range ports {
		if p == port {
			return true
		}
	}
	return false
}

func within(prefixes []netip.Prefix, a netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
