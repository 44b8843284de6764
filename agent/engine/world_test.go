// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/ipsec"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/packet/fake"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/uplink"
)

// world is two sites under virtual time: a node with a whole engine in each, between them paths that do what a test wants, and a stranger who can
// send anything to both. Nothing runs by itself: pass lets time go by, and every worker looks at its kernel as often as a real one does.
//
//	east: endpoints 10.1.0.0/16 --- node 192.0.2.1 ~~~ node 198.51.100.1 --- west: endpoints 10.2.0.0/16
type world struct {
	t        testing.TB
	shape    shape
	random   *rand.Rand
	net      *fake.Network
	nodes    [2]*node
	stranger *fake.Node
	queues   []*queuePair
	streams  map[roce.FlowKey]*stream
	arrivals uint64        // source packets that the paths have let through
	emitted  time.Duration // when the latest source packet left
	captured [][]byte      // the latest CREM messages on the paths
	// haste is up to how much time passes whenever a worker turns to its kernel: what arrives meanwhile meets a worker in the middle of a batch.
	haste time.Duration
}

// shape is what a world keeps for its life.
type shape struct {
	workers  int // of each node
	maxFlows int // of the kernel's table, 0: no bound
	ring     int // slots, 0: the default
	memory   int64
	seed     uint64
}

const (
	east, west = 0, 1
	cremPort   = 52000
	otherPort  = 52001
	pathDelay  = 5 * time.Millisecond
	uplinkMTU  = 1500
	rdmaMTU    = 256
	staleAfter = 10 * time.Millisecond
)

var (
	siteNames    = [2]string{"east", "west"}
	gateways     = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")}
	spares       = [2]netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("198.51.100.2")} // second addresses of the nodes
	endpoints    = [2]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16")}
	strangerAddr = netip.MustParseAddr("203.0.113.9")
	reporterAddr = netip.MustParseAddr("10.255.0.9")
)

// worldTransports is what the fake kernels recognise, and the nodes where a setting says so.
var worldTransports = roce.Transports{
	VeRoCE: roce.VeRoCESettings{Enabled: true, Port: roce.VeRoCEPort, Retransmission: 0x40, SACK: 0x18, ResponseACK: 0x19, ResponseSACK: 0x1a},
	MRC:    roce.MRCSettings{Enabled: true, Retransmission: 0x20},
}

// setting is a configuration in short.
type setting struct {
	none      bool // no domain at all
	onPath    bool // sites without gateways
	spare     bool // the nodes' second addresses are the gateways
	both      bool // the other addresses are gateways too
	immediate bool
	noDigest  bool
	required  bool // IPsec, for which there is no policy
	otherPort bool
	reporters bool // a node on the path is believed
	multipath bool // veRoCE and MRC are protected too
	k, m      int  // 0: 8 and 2
	hold      time.Duration
}

// config is the configuration of a site's node.
func (s setting) config(site int, generation int64) *Config {
	c := &Config{Generation: generation}
	if s.none {
		return c
	}
	d := Domain{Name: "backbone", Port: cremPort, Site: siteNames[site], RequireIPsec: s.required}
	if s.otherPort {
		d.Port = otherPort
	}
	if s.multipath {
		d.Transports = worldTransports
	}
	if s.reporters {
		d.Reporters = []netip.Prefix{netip.PrefixFrom(reporterAddr, 32)}
	}
	for i, name := range siteNames {
		x := Site{Name: name, Prefixes: []netip.Prefix{endpoints[i]}}
		if list := []netip.Addr{gateways[i], spares[i]}; !s.onPath {
			if s.spare {
				slices.Reverse(list)
			}
			if x.Gateways = list; !s.both {
				x.Gateways = list[:1]
			}
		}
		d.Sites = append(d.Sites, x)
	}
	d.Rules = []Rule{{Profile: s.profile()}}
	c.Domains = []Domain{d}
	return c
}

func (s setting) profile() *Profile {
	p := &Profile{
		Name: "any",
		CSF: csf.Params{
			K: 8, MaxM: 4, Epsilon: 1e-3, Schemes: []fec.Scheme{fec.Cauchy}, MaxRepairRatio: 1, Digest: !s.noDigest, FixedM: 2,
		},
		CRF: crf.Params{
			MaxHold: 50 * time.Millisecond, HoldBytes: 1 << 20, ReplayBytes: 256 << 10, MaxOpenBlocks: 16,
			MaxK: 255, MaxM: 255, MaxT: 9000, Schemes: 1<<fec.SourceCopy | 1<<fec.Cauchy, Digest: !s.noDigest,
		},
	}
	if s.k > 0 {
		p.CSF.K, p.CSF.FixedM = s.k, s.m
	}
	if s.hold > 0 {
		p.CRF.MaxHold = s.hold
	}
	if s.immediate {
		p.CRF.Delivery = crf.Immediate
	}
	return p
}

// newWorld starts an agent with this configuration on both nodes.
func newWorld(t testing.TB, sh shape, s setting) *world {
	t.Helper()
	if sh.memory == 0 {
		sh.memory = 16 << 20
	}
	w := &world{
		t: t, shape: sh, random: rand.New(rand.NewPCG(sh.seed, 7)), net: fake.NewNetwork(sh.seed), streams: map[roce.FlowKey]*stream{},
	}
	for i := range w.nodes {
		n := &node{w: w, site: i}
		n.Node = w.net.Node(fake.NodeConfig{
			Workers: sh.workers, Uplinks: 2, MTU: uplinkMTU, RingSlots: sh.ring,
			Addrs: []netip.Addr{gateways[i], spares[i]}, Behind: []netip.Prefix{endpoints[i]},
		})
		n.Program().StaleAfter, n.Program().MaxFlows, n.Program().Transports = staleAfter, sh.maxFlows, &worldTransports
		n.forgetAccounts()
		w.nodes[i] = n
	}
	w.stranger = w.net.Node(fake.NodeConfig{Workers: 1, Addrs: []netip.Addr{strangerAddr}})
	for _, n := range w.nodes {
		n.setPath(fake.Path{Delay: pathDelay})
		n.setting = s
		n.start()
	}
	return w
}

// other is the node of the other site.
func (n *node) other() *node { return n.w.nodes[1-n.site] }

// node is one node with its agent.
type node struct {
	*fake.Node
	w       *world
	site    int
	engine  *Engine
	setting setting
	killed  bool // the last agent
	numbers int64
	links   []int           // of the uplinks, those that exist
	wake    []time.Duration // when each worker looks again
	stalled []time.Duration // until when each worker does not run
	path    fake.Path       // of what leaves here
	lose    losing
	// recognise sees what the kernel is told to recognise.
	recognise func(packet.Recognised)
	repair    func() ([]string, error) // nil: the kernel is as it was told
	accounts
}

// losing is what the path from a node loses besides its share.
type losing struct {
	sources, messages int // the next ones
	rate              float64
}

func (n *node) setPath(p fake.Path) {
	n.path = p
	p.Drop = n.onPath
	n.w.net.SetPath(n.Node, n.other().Node, p)
}

// start begins an agent, as its program does.
func (n *node) start() {
	n.w.t.Helper()
	if n.links == nil {
		n.links = []int{0, 1}
	}
	n.w.collect()
	if len(n.held) > 0 && !n.killed {
		n.w.t.Fatalf("%s: %d packets were held while no agent was there", siteNames[n.site], len(n.held))
	}
	n.forgetAccounts()
	n.killed = false
	e := New(Options{Node: siteNames[n.site], Workers: n.w.shape.workers, Memory: n.w.shape.memory, Backend: &backend{n: n}})
	e.now, e.random = n.w.net.Now, n.w.random.Uint64
	n.engine = e
	n.wake = make([]time.Duration, n.w.shape.workers)
	n.stalled = make([]time.Duration, n.w.shape.workers)
	e.moment = func() bool { n.w.pass(time.Millisecond); return true }
	n.apply(n.setting)
	e.holder.SetBypass(false)
	for _, k := range e.workers {
		k.step()
	}
}

// apply gives the agent a configuration.
func (n *node) apply(s setting) {
	n.w.t.Helper()
	n.setting = s
	n.numbers++
	n.excuses++
	if _, err := n.engine.Apply(s.config(n.site, n.numbers)); err != nil {
		n.w.t.Fatal(err)
	}
}

// stop ends the agent as SIGTERM does.
func (n *node) stop() {
	e := n.engine
	e.holder.SetBypass(true)
	close(e.stop)
	for _, k := range e.workers {
		k.run(e.stop)
	}
	n.settle(false)
	n.end()
}

// kill ends the agent as SIGKILL does: what it holds is lost, and what the kernel holds until it misses the heartbeat.
func (n *node) kill() {
	n.settle(true)
	n.killed = true
	n.end()
}

func (n *node) end() {
	n.w.t.Helper()
	if err := n.engine.closeKernel(); err != nil {
		n.w.t.Fatal(err)
	}
	n.engine = nil
}

// step lets every worker that is due do one batch.
func (n *node) step() {
	if n.engine == nil {
		return
	}
	now := n.w.net.Now()
	for i, k := range n.engine.workers {
		if now < n.wake[i] || now < n.stalled[i] {
			continue
		}
		if k.step() {
			n.wake[i] = now
			continue
		}
		n.wake[i] = now + max(n.rest(k), time.Microsecond)
	}
}

// rest is how long a worker sleeps. With frames on their way descriptors would wake it; with none, and nothing to do, it sleeps until it has.
func (n *node) rest(k *worker) time.Duration {
	switch {
	case n.w.net.InFlight() > 0:
		return min(k.patience(), waitActive)
	case len(k.holding) == 0 && len(k.letters) == 0:
		return max(0, min(k.timers.next(), k.sweepAt)-n.w.net.Now())
	}
	return k.patience()
}

// rouse lets the workers look at once, and says that they have been alive meanwhile.
func (n *node) rouse() {
	for i := range n.wake {
		n.wake[i] = min(n.wake[i], n.w.net.Now())
		if n.engine != nil && n.w.net.Now() >= n.stalled[i] {
			n.engine.holder.Beat(i, n.w.net.Now())
		}
	}
}

// pass lets time go by.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	for end := w.net.Now() + d; ; {
		for _, n := range w.nodes {
			n.step()
		}
		w.collect()
		now := w.net.Now()
		if now >= end {
			return
		}
		next := end
		for _, n := range w.nodes {
			for i := range n.wake {
				if n.engine != nil {
					next = min(next, max(n.wake[i], n.stalled[i]))
				}
			}
		}
		if w.net.InFlight() > 0 {
			next = min(next, max(w.net.Next(), now+waitActive))
		}
		w.net.Advance(max(next-now, 0))
	}
}

// meanwhile lets a little time pass within a batch.
func (w *world) meanwhile() {
	if w.haste > 0 {
		w.net.Advance(time.Duration(w.random.Int64N(int64(w.haste))))
	}
}

// backend is the Backend of a node.
type backend struct{ n *node }

var errNoInterface = errors.New("no such interface")

func (b *backend) Load(_, slotMTU int) error {
	b.n.Program().Forget()
	b.n.Program().SlotOctets = slotMTU + ethernetRoom
	return nil
}
func (b *backend) Holder() packet.Holder       { return holder{b.n.Program(), b.n.w} }
func (b *backend) Ring(worker int) packet.Ring { return ring{b.n.Program().Ring(worker), b.n.w} }
func (b *backend) OpenTaps(u uplink.Uplink) ([]packet.Tap, error) {
	taps := b.n.OpenTaps(u.Index)
	if taps == nil {
		return nil, errNoInterface
	}
	return taps, nil
}
func (b *backend) OpenInjector() (packet.Injector, error) {
	return &injector{Injector: b.n.Injector(), n: b.n}, nil
}
func (b *backend) OpenSockets(port uint16, _ int) ([]packet.Socket, error) {
	return b.n.Sockets(port), nil
}
func (b *backend) Attach(uplink.Uplink) (string, error) { return "tcx", nil }
func (b *backend) Detach(int) error                     { return nil }
func (b *backend) Attached() []int                      { return nil }
func (b *backend) SetDomains(domains []bpf.Domain, local []netip.Addr) error {
	b.n.Program().SetDomains(domains, local)
	return nil
}
func (b *backend) SetTransports(r packet.Recognised, _ []packet.Tap) error { // what the fake recognises is the world's
	if b.n.recognise != nil {
		b.n.recognise(r)
	}
	return nil
}
func (b *backend) Repair() ([]string, error) {
	if b.n.repair == nil {
		return nil, nil
	}
	return b.n.repair()
}
func (b *backend) Counters() (map[string]uint64, error)      { return nil, nil }
func (b *backend) Queued(int) (int64, error)                 { return 0, nil }
func (b *backend) PortCounters(int) (uplink.Counters, error) { return uplink.Counters{}, nil }
func (b *backend) FindUplinks([]string, []netip.Prefix) (uplink.Facts, error) {
	f := uplink.Facts{Local: []netip.Addr{gateways[b.n.site], spares[b.n.site]}}
	for _, i := range b.n.links {
		f.Uplinks = append(f.Uplinks, uplink.Uplink{Name: []string{"wan0", "wan1"}[i], Index: firstUplink + i, MTU: uplinkMTU})
	}
	return f, nil
}
func (b *backend) Tunnels() (Tunnels, error)                   { return nil, errNoInterface }
func (b *backend) DropTunnels() (bool, error)                  { return true, nil }
func (b *backend) WatchUplinks(context.Context, func()) error  { return nil }
func (b *backend) Leads(netip.Prefix) ([]uplink.Lead, error)   { return nil, nil }
func (b *backend) ListPolicies() ([]ipsec.Policy, error)       { return nil, nil }
func (b *backend) WatchPolicies(context.Context, func()) error { return nil }
func (b *backend) Close() error                                { return nil }

// firstUplink is the interface index of a fake node's first uplink.
const firstUplink = 2

// holder, ring and injector are the fake ones, with a world that does not stand still while a worker uses them.
type holder struct {
	packet.Holder
	w *world
}

func (h holder) RegisterFlow(key packet.FlowKey, worker, mtu int, mode packet.Mode) (int, error) {
	h.w.meanwhile()
	defer h.w.meanwhile()
	return h.Holder.RegisterFlow(key, worker, mtu, mode)
}

func (h holder) UnregisterFlow(index int) error {
	defer h.w.meanwhile()
	return h.Holder.UnregisterFlow(index)
}

func (h holder) UpdateFlow(index, mtu int, mode packet.Mode) error {
	h.w.meanwhile()
	defer h.w.meanwhile()
	return h.Holder.UpdateFlow(index, mtu, mode)
}

func (h holder) HandBack(index int, held uint64, next uint32, inside bool) bool {
	h.w.meanwhile()
	return h.Holder.HandBack(index, held, next, inside)
}

type ring struct {
	packet.Ring
	w *world
}

func (r ring) Next(frames []packet.Frame) int {
	r.w.meanwhile()
	return r.Ring.Next(frames)
}

// injector also notes what it injects, with the octets that there are when it does.
type injector struct {
	packet.Injector
	n     *node
	queue []injection
}

type injection struct{ head, payload []byte }

func (j *injector) Inject(ifindex int, head, payload []byte) {
	j.queue = append(j.queue, injection{head, payload})
	j.Injector.Inject(ifindex, head, payload)
}

func (j *injector) Flush() {
	j.n.w.meanwhile()
	for _, x := range j.queue {
		j.n.noteInjected(append(append([]byte{}, x.head...), x.payload...))
	}
	j.queue = j.queue[:0]
	j.Injector.Flush()
	j.n.w.meanwhile()
}
