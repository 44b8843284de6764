// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/internal/agentapi"
)

const (
	// askEvery is how often the other end of each tunnel is asked, leaseFor what an answer of ours is good for: two questions in a row may be lost.
	askEvery = time.Second
	leaseFor = 3500 * time.Millisecond
	// noticeEvery limits what is logged of each odd pair of ECN fields (RFC 6040, Section 4.2).
	noticeEvery = time.Minute

	cnpEvery     = 20 * time.Millisecond // of a flow and level
	cnpPerSecond = 1000
	cnpFlows     = 4096

	udpHead = 8
)

// tunnels is what the control side knows of the tunnels between sites (docs/wan-ecn.md). Flows go into one only while its other end has
// said, lately and in answer to a packet of full size that came through it, that it takes them. So nothing is sent to where nobody takes it,
// whatever ends: this agent (it does not renew the lease), the other one (its programs stay, it does not answer), or the path.
type tunnels struct {
	mu      sync.Mutex
	kernel  Tunnels // nil: not loaded
	failed  string  // why it is not, though it is wanted
	amiss   string  // why it is not what it should be, though it was
	ways    []*way
	byEnds  map[packet.Ends]*tunnel // wanted ones, by local and remote address
	inForce bpf.TunnelPlan          // what the kernel has
	leaving bool                    // it has more than is wanted, because others may still send into it
	cleared bool                    // nothing of an earlier agent is left
	uplinks tunnelUplinks
	waiting bool // the configuration is provisional: what an earlier agent left stays

	sender  *ecn.Sender
	notices *ecn.Notices
	cells   [4][4]uint64 // when last looked at

	heard      chan heardLease // from the workers, which never wait for mu: who holds it may be attaching programs
	unexpected uint64          // messages that fit no tunnel
}

// heardLease is a request or an answer on its way from a worker.
type heardLease struct {
	ends packet.Ends
	m    ecn.Lease
}

// leasesWaiting is how many may wait: more than the gateways of a plan ask in a round.
const leasesWaiting = 256

// way leads to one other site.
type way struct {
	domain, site string
	gateway      bool // this node is one of the own site
	port         uint16
	veroce       uint16         // UDP port of veRoCE; 0: its flows are not the domain's
	prefixes     []netip.Prefix // of the other site
	own          []netip.Prefix
	tunnels      []*tunnel // the preferred one first
	use          int       // index of the one that flows take; -1: none
	queue        Queue     // by which packets are marked on their way into it
	queued       int64     // its average, in octets
	queueProblem string    // why it is not known
	measured     bool
}

// tunnel is one pair of gateways.
type tunnel struct {
	bpf.Tunnel
	nonce   uint64        // of the last request; 0: none was sent
	askedAt time.Duration // when it was sent
	until   time.Duration // of the lease
	theirs  uint64        // nonce of the other end's last request; 0: none came

	measured colouring
}

func (t *tunnel) ends() packet.Ends { return packet.Ends{Src: t.Local, Dst: t.Remote} }

// plan takes the tunnels of a snapshot that is being made. What the kernel lacks for them keeps nothing else from working.
func (t *tunnels) plan(e *Engine, next *snapshot, local []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.byEnds
	t.ways, t.byEnds = nil, map[packet.Ends]*tunnel{}
	for i := range next.cfg.Domains {
		t.ways = append(t.ways, next.ways(&next.cfg.Domains[i], local, e.opts.Node)...)
	}
	next.ends = map[packet.Ends]bool{}
	for _, w := range t.ways {
		for i, x := range w.tunnels {
			if old := before[x.ends()]; old != nil && old.Tunnel == x.Tunnel {
				w.tunnels[i], x = old, old
			}
			x.measured.set(w.measured, e.measuring.present())
			t.byEnds[x.ends()] = x
			next.ends[x.ends()], next.ends[packet.Ends{Src: x.Remote, Dst: x.Local}] = true, true
		}
	}
	t.waiting = next.cfg.Provisional
	if len(t.byEnds) > 0 && t.kernel == nil {
		t.load(e)
	}
	if t.kernel == nil {
		return
	}
	var last []datagram
	for ends, x := range before {
		if t.byEnds[ends] != x && x.theirs != 0 {
			last = append(last, x.say(ecn.Lease{Answer: true, Nonce: x.theirs}, 0))
		}
	}
	e.say(last)
	t.choose(e.now())
	t.settle(e.now())
	t.attach(next) // now that the programs know what to take: those of an earlier agent may have had other maps
	if len(t.byEnds) > 0 {
		next.limiter = t.kernel
	}
}

// ways are those of a domain.
func (s *snapshot) ways(d *Domain, local []netip.Addr, node string) (list []*way) {
	if d.WAN == nil || len(s.uplinks) == 0 {
		return nil
	}
	mtu := s.uplinks[0].mtu
	for i := range s.uplinks {
		mtu = min(mtu, s.uplinks[i].mtu)
	}
	if d.WAN.PathMTU > 0 {
		mtu = min(mtu, d.WAN.PathMTU)
	}
	gateways := d.ownGateways(local)
	for i := range d.Sites {
		site := &d.Sites[i]
		if site.Name == d.Site || !slices.Contains(d.WAN.Sites, site.Name) {
			continue
		}
		w := &way{domain: d.Name, site: site.Name, gateway: len(gateways) > 0, port: d.Port, prefixes: site.Prefixes, own: d.ownSite().Prefixes, use: -1, queue: d.WAN.Queue, measured: d.WAN.Measure}
		if v := d.Transports.VeRoCE; v.Enabled {
			w.veroce = v.Port
		}
		for _, here := range gateways {
			for _, there := range site.Gateways {
				if here.Is4() == there.Is4() {
					w.tunnels = append(w.tunnels, &tunnel{Tunnel: bpf.Tunnel{Local: here, Remote: there, Port: d.Port, MTU: mtu, Compatibility: d.WAN.Compatibility}})
				}
			}
		}
		// Each gateway of the own site prefers another one of the other site.
		slices.SortFunc(w.tunnels, func(a, b *tunnel) int {
			return cmp.Or(cmp.Compare(rank(node, a.ends()), rank(node, b.ends())), a.Remote.Compare(b.Remote), a.Local.Compare(b.Local))
		})
		list = append(list, w)
	}
	return list
}

// rank is any number that differs with the node and the gateways. A hash that mixes less gives all nodes one order: their names and addresses differ in
// few bits.
func rank(node string, ends packet.Ends) uint64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %v %v", node, ends.Src, ends.Dst))
	return binary.BigEndian.Uint64(sum[:])
}

// load loads the programs; another plan tries again.
func (t *tunnels) load(e *Engine) {
	kernel, err := e.backend.Tunnels()
	if err != nil {
		t.failed = err.Error()
		return
	}
	t.kernel, t.failed, t.cleared, t.uplinks = kernel, "", true, newTunnelUplinks()
	wall := uint64(time.Now().UnixMicro())
	t.sender = ecn.NewSender(ecn.SenderConfig{Node: nodeID(e.opts.Node), Start: wall, Every: cnpEvery, PerSecond: cnpPerSecond, Flows: cnpFlows})
	t.notices = ecn.NewNotices(noticeEvery)
	if s, err := kernel.Stats(); err == nil {
		t.cells = s.Cells
	}
	go e.tellMarks(kernel) // ends with the kernel's programs
}

// repair makes the kernel's programs of tunnels as they should be.
func (t *tunnels) repair() (found []string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.amiss = ""
	if t.kernel == nil {
		return nil, nil
	}
	if found, err = t.kernel.Repair(); err != nil {
		t.amiss = "somebody else changed the programs of tunnels in the kernel, to repair them is tried again: " + err.Error()
	}
	return found, err
}

// choose makes each way lead through its first tunnel with a lease, and reports whether that changed any.
func (t *tunnels) choose(now time.Duration) (changed bool) {
	for _, w := range t.ways {
		use := slices.IndexFunc(w.tunnels, func(x *tunnel) bool { return x.until > now })
		changed = changed || use != w.use
		w.use = use
	}
	return changed
}

// settle gives the plan to the kernel. What other sites may still send through tunnels that are not wanted any more is taken until the last
// promise is over; meanwhile nothing leaves by them.
func (t *tunnels) settle(now time.Duration) {
	wanted := t.wanted()
	t.leaving = now < t.kernel.Promised() && lacks(wanted, t.inForce)
	if t.leaving {
		wanted = t.inForce
		wanted.Sites = slices.Clone(wanted.Sites)
		for i := range wanted.Sites {
			wanted.Sites[i].Use = -1
		}
	}
	if err := t.kernel.Set(wanted); err != nil {
		t.failed = err.Error()
		return
	}
	t.inForce, t.failed = wanted, ""
}

func (t *tunnels) wanted() (p bpf.TunnelPlan) {
	for _, w := range t.ways {
		s := bpf.TunnelSite{Prefixes: w.prefixes, Use: w.use, VeRoCE: w.veroce, Measured: w.measured}
		for _, x := range w.tunnels {
			s.Tunnels = append(s.Tunnels, x.Tunnel)
		}
		p.Sites = append(p.Sites, s)
		p.Own = append(p.Own, w.own...)
	}
	return p
}

// lacks reports whether a plan lacks a pair of ends that another one has.
func lacks(p, other bpf.TunnelPlan) bool {
	have := map[packet.Ends]bool{}
	for _, s := range p.Sites {
		for _, x := range s.Tunnels {
			have[packet.Ends{Src: x.Local, Dst: x.Remote}] = true
		}
	}
	for _, s := range other.Sites {
		for _, x := range s.Tunnels {
			if !have[packet.Ends{Src: x.Local, Dst: x.Remote}] {
				return true
			}
		}
	}
	return false
}

// keepTunnels asks for leases until the engine stops.
func (e *Engine) keepTunnels() {
	timer, over := time.NewTicker(askEvery), time.NewTimer(e.measuring.wait())
	defer timer.Stop()
	defer over.Stop()
	e.tendTunnels()
	for {
		select {
		case <-e.stop:
			return
		case x := <-e.tunnels.heard:
			e.takeLease(x)
		case x := <-e.measuring.inbox:
			e.takeReadings(x)
		case <-over.C:
			e.afterPeriod()
			over.Reset(e.measuring.wait())
		case <-timer.C:
			e.tendTunnels()
		}
	}
}

// tendTunnels is one round: what is over ends, what is wanted is asked for.
func (e *Engine) tendTunnels() {
	t := &e.tunnels
	if t.idle() {
		e.dropTunnels()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kernel == nil {
		return
	}
	now := e.now()
	t.uplinks.leave(t.kernel, now)
	if changed := t.choose(now); changed || t.leaving {
		t.settle(now)
		e.changed(changed)
	}
	if !t.leaving {
		var requests []datagram
		for _, x := range t.byEnds {
			x.nonce, x.askedAt = e.random()|1, now
			head := udpHead + ecn.Overhead(x.Local) // the request's own
			requests = append(requests, x.say(ecn.Lease{Nonce: x.nonce}, ecn.InnerMTU(x.MTU, x.Remote, head)))
		}
		e.say(requests)
	}
	e.noticeOdd(now)
}

func (e *Engine) changed(is bool) {
	if is && e.opts.Changed != nil {
		e.opts.Changed()
	}
}

// idle reports whether the programs are there and neither wanted nor used any more.
func (t *tunnels) idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byEnds) == 0 && !t.leaving && !t.waiting && (t.kernel != nil || !t.cleared)
}

// dropTunnels takes the programs away, unless a new configuration wants them. Until it has the lock every worker obeys the one without.
func (e *Engine) dropTunnels() {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := &e.tunnels
	if !t.idle() || e.stopping() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	done, err := e.backend.DropTunnels()
	if !done && err == nil {
		return
	}
	if t.kernel != nil {
		for i := range e.snap.Load().uplinks {
			_ = e.snap.Load().uplinks[i].lookIntoTunnels(false) // what a tap copies in vain the worker drops
		}
	}
	t.kernel, t.inForce, t.cleared, t.failed = nil, bpf.TunnelPlan{}, true, ""
	if err != nil {
		t.cleared, t.failed = false, err.Error()
	}
}

// datagram is a message that no flow sends.
type datagram struct {
	from netip.Addr
	to   netip.AddrPort // the CREM port of both
	msg  []byte
}

// say is a message about a tunnel to its other end; a request has size octets.
func (t *tunnel) say(m ecn.Lease, size int) datagram {
	return datagram{t.Local, netip.AddrPortFrom(t.Remote, t.Port), m.Append(nil, size)}
}

// say sends datagrams by worker 0. If it does not come to them, nothing else is lost.
func (e *Engine) say(list []datagram) {
	if len(list) == 0 || len(e.workers) == 0 {
		return
	}
	select {
	case e.workers[0].saying <- list:
	default:
	}
}

// speak sends what the control side wants said.
func (w *worker) speak() {
	for {
		select {
		case list := <-w.saying:
			for _, d := range list {
				w.send(d.to.Port(), d.to, d.from, ecnECT0, d.msg)
			}
		default:
			return
		}
	}
}

// lease takes a request or an answer from the other end of a tunnel.
func (w *worker) lease(m *packet.Message) {
	x, err := ecn.ParseLease(m.Data)
	if err != nil {
		w.drops[dropMessage]++
		return
	}
	// What an interface takes that is no uplink any more, it takes for the promises of before.
	if !x.Answer && w.snap.uplinkOf(m.Ifindex) == nil {
		w.drops[dropLease]++
		return
	}
	select {
	case w.e.tunnels.heard <- heardLease{packet.Ends{Src: m.To, Dst: m.From.Addr()}, x}:
	default:
		w.drops[dropLeaseQueue]++
	}
}

// takeLease handles a request or an answer that a worker heard.
func (e *Engine) takeLease(h heardLease) {
	t := &e.tunnels
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.byEnds[h.ends]
	switch {
	case x == nil || t.kernel == nil || t.leaving:
	case h.m.Answer && t.opens(x, h.m):
		x.measured.answered(e.now() - x.askedAt)
		x.until = x.askedAt + h.m.For // past if that is 0
		t.kernel.Lease(x.Tunnel, x.until)
		if now := e.now(); t.choose(now) {
			t.settle(now)
			e.changed(true)
		}
		return
	case !h.m.Answer && t.kernel.Kept(): // only programs that outlive the agent may promise anything
		t.kernel.Promise(e.now() + leaseFor)
		x.theirs = h.m.Nonce
		e.say([]datagram{x.say(ecn.Lease{Answer: true, Nonce: h.m.Nonce, For: leaseFor}, 0)})
		return
	}
	t.unexpected++
}

// opens reports whether an answer is that to the last request, which went into the tunnel. One that left by an uplink without the programs went
// beside it. (The two clocks are tied but closely.)
func (t *tunnels) opens(x *tunnel, answer ecn.Lease) bool {
	return answer.Nonce == x.nonce && x.nonce != 0 && t.kernel.Asked(x.Tunnel) >= x.askedAt-askEvery/2
}

// tellMarks sends a CNP to where each packet that met congestion entered its tunnel. If that is here, the flow is here too.
func (e *Engine) tellMarks(kernel Tunnels) {
	for {
		m, err := kernel.ReadMark()
		if err != nil {
			return
		}
		e.tellMark(m)
	}
}

func (e *Engine) tellMark(m bpf.Mark) {
	flow, level := ecn.Flow{Src: m.Flow.Src, Dst: m.Flow.Dst, Label: m.Flow.QPN}, ecn.LevelEarly
	if m.Severe {
		level = ecn.LevelSevere
	}
	if m.Own {
		e.giveMark(ownMark{flow, level})
		return
	}
	t := &e.tunnels
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.byEnds[packet.Ends{Src: m.Local, Dst: m.Remote}]
	if x == nil {
		return
	}
	cnp, why := t.sender.Notify(e.now(), uint64(time.Now().UnixMicro()), flow, level)
	if why == ecn.DropNone {
		e.say([]datagram{{x.Local, netip.AddrPortFrom(x.Remote, x.Port), cnp.Append(nil)}})
	}
}

// noticeOdd tells of pairs of ECN fields that nobody should make (RFC 6040, Section 4.2).
func (e *Engine) noticeOdd(now time.Duration) {
	t := &e.tunnels
	s, err := t.kernel.Stats()
	if err != nil || e.opts.Notice == nil {
		return
	}
	for i := range s.Cells {
		for j, n := range s.Cells[i] {
			inner, outer := ecn.Codepoint(i), ecn.Codepoint(j)
			if n <= t.cells[i][j] {
				continue
			}
			if ok, _ := t.notices.Log(now, inner, outer, ecn.Inner(inner, outer).Notice); ok {
				e.opts.Notice(fmt.Sprintf("%d packets came in tunnels with the odd ECN fields inner %v, outer %v: a node of the WAN, or who can write there, changes outer headers", n-t.cells[i][j], inner, outer))
				t.cells[i][j] = n
			}
		}
	}
}

// describe fills in what the status says of tunnels.
func (t *tunnels) describe(s *agentapi.Status, now time.Duration, snap *snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.ways {
		out := agentapi.Tunnel{Domain: w.domain, Site: w.site, Gateway: w.gateway}
		if w.use >= 0 && t.kernel != nil {
			x := w.tunnels[w.use]
			out.Local, out.Remote, out.MTU = x.Local.String(), x.Remote.String(), x.MTU
			until, ifindex := t.kernel.Leased(x.Tunnel)
			if u := snap.uplinkOf(ifindex); u != nil {
				out.Uplink = u.name
			}
			out.Up = until > now && out.Uplink != ""
		}
		if w.queue != (Queue{}) {
			out.Queue = &agentapi.Queue{Average: w.queued, Early: w.queue.Early, Severe: w.queue.Severe, Problem: w.queueProblem}
		}
		if !out.Up {
			out.Problem = t.problem(w)
		}
		out.Measured = w.describeMeasured()
		s.Tunnels = append(s.Tunnels, out)
	}
	if t.unexpected > 0 {
		s.Drops[dropNames[dropLease]] += t.unexpected
	}
	if t.kernel == nil {
		return
	}
	stats, err := t.kernel.Stats()
	if err != nil {
		return
	}
	for i, n := range stats.Passages {
		s.Counters["tunnel_"+bpf.Passage(i).String()] = n
	}
	for level := ecn.LevelEarly; level <= ecn.LevelSevere; level++ {
		s.Counters["cnp_sent_"+level.String()] = t.sender.Stats().Sent[level]
	}
}

// problem says why no flow goes to a site in a tunnel, and what to do.
func (t *tunnels) problem(w *way) string {
	switch {
	case t.failed != "":
		return t.failed
	case !w.gateway:
		return "this node has no gateway address of the own site: flows leave outside of tunnels"
	case len(w.tunnels) == 0:
		return fmt.Sprintf("no gateway of site %s has an address of the same IP version: flows leave outside of tunnels", w.site)
	case t.leaving:
		return "waits until other sites have left the tunnels of the configuration before"
	case t.amiss != "":
		return t.amiss
	case t.uplinks.problem() != "":
		return t.uplinks.problem()
	}
	x := w.tunnels[0]
	return fmt.Sprintf("no gateway of site %s has answered a packet of %d octets in a tunnel, so flows leave outside: enable spec.wan there, let IP protocols 4 and 41 pass between the gateways, "+
		"give its agent a pin folder on a BPF file system, or write what the path carries in spec.wan.pathMTU", w.site, x.MTU)
}
