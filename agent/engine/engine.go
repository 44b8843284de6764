// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/realtime"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/uplink"
	"crem.dev/crem/internal/agentapi"
)

// Options are what an engine is started with and keeps for its life.
type Options struct {
	Node    string
	Version string
	Workers int   // packet workers; 0: one per core
	Memory  int64 // octets of all pools together; 0: 1 GiB
	Backend Backend
	// Realtime asks the system to run this process before ordinary programs; refused, it runs as it is, and Status says so.
	Realtime bool
	// Notice is given sentences for the log that no status keeps, from any goroutine. May be nil.
	Notice func(text string)
	// Drift is given a sentence for each thing that somebody else had changed in the kernel and that is as it was again. It must not block. May be nil.
	Drift func(found []string)
	// Changed is called, from any goroutine, when something that Status shows has changed. It must not block. May be nil.
	Changed func()
}

const (
	defaultMemory = 1 << 30
	maxMTU        = 9216
	retryUplinks  = 2 * time.Second
)

// Engine owns the workers and what they share.
type Engine struct {
	opts    Options
	backend Backend
	holder  packet.Holder
	workers []*worker
	owners  owners
	snap    atomic.Pointer[snapshot]
	random  func() uint64
	now     func() time.Duration // the clock of Frame.Time and Holder.Beat
	sites   *knownSites          // what all workers know of the paths to other sites
	moment  func() bool          // lets the workers go on for a while; false: the engine has stopped

	repaired atomic.Uint64 // differences between the kernel and what it was told

	mu      sync.Mutex // guards what follows: the control side. No worker takes it, nor anything that tells how the workers are
	cfg     *Config
	loaded  bool
	facts   uplink.Facts // of the node, as they were found last
	xfrm    policies
	look    chan struct{} // policies may have changed
	numbers uint64
	tunnels tunnels

	measuring measuring
	stop      chan struct{}
	running   sync.WaitGroup
}

// ItemResult tells how one item of a configuration fared. One bad item does not stop the others.
type ItemResult struct {
	Domain  string
	Uplink  string // empty: about the domain as a whole
	Reason  string // one of the reasons of agentapi
	Problem string // empty: applied
}

// New makes an engine. Nothing touches the kernel before the first Apply.
func New(opts Options) *Engine {
	if opts.Workers <= 0 {
		opts.Workers = runtime.NumCPU()
	}
	if opts.Memory <= 0 {
		opts.Memory = defaultMemory
	}
	e := &Engine{
		opts: opts, backend: opts.Backend, measuring: newMeasuring(), random: cryptoRandom(), now: packet.Now, sites: newKnownSites(),
		stop: make(chan struct{}), look: make(chan struct{}, 1),
	}
	e.moment = e.millisecond
	e.owners.m = make(map[peerFlow]int)
	e.tunnels.heard = make(chan heardLease, leasesWaiting)
	return e
}

// Apply makes cfg the configuration in force: interfaces are found, programs attached, taps and sockets opened, flows judged anew. It returns a
// result for every item. It may be called at any time; an item that failed is tried again when the interfaces change.
func (e *Engine) Apply(cfg *Config) ([]ItemResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.apply(cfg)
}

// apply goes in the order in which a half-done step does no harm: sockets and taps before programs, addresses before flows, workers last, what is
// not needed any more after all workers have left it.
func (e *Engine) apply(cfg *Config) ([]ItemResult, error) {
	given := cfg
	facts, results := e.findUplinks(cfg)
	if !e.loaded {
		if err := e.load(facts); err != nil {
			return nil, err
		}
	}
	cfg, e.facts = e.secure(cfg, facts), facts
	old := e.snap.Load()
	next := &snapshot{cfg: cfg, local: make(map[netip.Addr]bool, len(facts.Local)), excluded: facts.Excluded}
	for _, a := range facts.Local {
		next.local[a] = true
	}
	if err := e.backend.SetDomains(bpfDomains(cfg), facts.Local); err != nil {
		return nil, fmt.Errorf("tell the kernel program about the domains: %w", err)
	}
	all, until := cfg.transports(), cfg.until(old.recognises())
	next.transports = &all
	if err := e.recognise(&until, old); err != nil {
		return nil, err
	}
	for i := range cfg.Domains {
		d := &cfg.Domains[i]
		p, err := e.openPort(old, d.Port)
		if err != nil {
			results = append(results, ItemResult{Domain: d.Name, Reason: reasonOf(err), Problem: err.Error()})
			continue
		}
		p.own = d.ownGateways(facts.Local)
		if p.security = nil; d.RequireIPsec {
			p.security = &d.security
		}
		next.ports = append(next.ports, p)
		results = append(results, ItemResult{Domain: d.Name, Reason: agentapi.ReasonApplied})
	}
	for _, u := range facts.Uplinks {
		st, err := e.openUplink(old, u)
		r := ItemResult{Uplink: u.Name, Reason: agentapi.ReasonApplied}
		if err != nil {
			r.Reason, r.Problem = reasonOf(err), err.Error()
		} else {
			next.uplinks = append(next.uplinks, st)
		}
		results = append(results, r)
	}
	e.tunnels.plan(e, next, facts.Local)
	next.results = results
	next.resolve(e.workerMemory())
	e.numbers++
	next.number = e.numbers
	e.snap.Store(next)
	e.cfg = given
	e.retire(old, next)
	if err := e.recognise(&all, next); err != nil {
		return nil, err
	}
	if !cfg.Provisional {
		e.clear(facts)
	}
	if cfg.requiresIPsec() {
		e.lookSoon()
	}
	if e.opts.Changed != nil {
		e.opts.Changed()
	}
	return slices.Clone(results), nil
}

// recognise tells the programs, and the taps of a snapshot, which transports to recognise.
func (e *Engine) recognise(t *roce.Transports, s *snapshot) error {
	if err := e.backend.SetTransports(recognised(t), s.allTaps()); err != nil {
		return fmt.Errorf("tell the kernel program about the transports: %w", err)
	}
	return nil
}

// load prepares programs, pools and workers, once.
func (e *Engine) load(facts uplink.Facts) error {
	mtu := 0
	for _, u := range facts.Uplinks {
		mtu = max(mtu, u.MTU)
	}
	if mtu == 0 {
		mtu = maxMTU
	}
	if err := e.backend.Load(e.opts.Workers, mtu); err != nil {
		return err
	}
	e.holder = e.backend.Holder()
	for i := range e.opts.Workers {
		w, err := e.newWorker(i)
		if err != nil {
			return err
		}
		e.workers = append(e.workers, w)
	}
	e.loaded = true
	return nil
}

// workerMemory is the octets of one worker's pool.
func (e *Engine) workerMemory() int64 { return e.opts.Memory / int64(e.opts.Workers) }

func (e *Engine) newWorker(id int) (*worker, error) {
	inj, err := e.backend.OpenInjector()
	if err != nil {
		return nil, err
	}
	pool := fec.NewPool(e.workerMemory())
	n := uint64(e.opts.Workers)
	random := func() uint64 { // modulo the number of workers a nonce names its worker
		r := e.random()
		return r - r%n + uint64(id)
	}
	w := &worker{
		e: e, id: id, pool: pool, ring: e.backend.Ring(id), inj: inj,
		csfEnv:     &csf.Env{Pool: pool, Random: random, Node: csf.NewBudget(0), Site: e.sites.site},
		crfEnv:     crf.NewEnv(pool),
		sending:    make(map[roce.FlowKey]*sendFlow),
		byHosts:    make(map[roce.HostPair][]*sendFlow),
		byNonce:    make(map[uint64]*sendFlow),
		sendKnown:  make(map[peerFlow]*sendFlow),
		ended:      ended{newTotals(), newTotals(), newTotals()},
		endedSites: make(siteSums),
		receiving:  make(map[uint32]*recvFlow),
		recvByKey:  make(map[roce.FlowKey]*recvFlow),
		limits:     newHelloLimits(),
		unknown:    bucket{rate: 1000, burst: 1000, tokens: 1000},
		pairs:      newPairing(),
		ports:      make(map[int]*port),
		letters:    make(chan *letter, 4096),
		saying:     make(chan []datagram, 64),
		marks:      make(chan ownMark, marksWaiting),
		calls:      make(chan func() bool, 16),
		measured:   make(chan measurements, measurementsWaiting),
	}
	w.cnps = w.newReceiver()
	return w, nil
}

// findUplinks asks the system for every domain's interfaces and joins the answers. What is named and can not be taken is among the results, and other
// interfaces that lead to another site and were not taken are among the facts.
func (e *Engine) findUplinks(cfg *Config) (uplink.Facts, []ItemResult) {
	var all uplink.Facts
	var results []ItemResult
	for i := range cfg.Domains {
		d := &cfg.Domains[i]
		facts, err := e.backend.FindUplinks(d.Uplinks, d.remotePrefixes())
		if err != nil {
			results = append(results, ItemResult{Domain: d.Name, Reason: reasonOf(err), Problem: err.Error()})
		} else if len(d.Uplinks) == 0 && len(facts.Uplinks) == 0 {
			results = append(results, ItemResult{Domain: d.Name, Reason: agentapi.ReasonNoRoute, Problem: noRoute(facts)})
		}
		for _, u := range facts.Uplinks {
			if !slices.ContainsFunc(all.Uplinks, func(x uplink.Uplink) bool { return x.Index == u.Index }) {
				all.Uplinks = append(all.Uplinks, u)
			}
		}
		for _, x := range facts.Excluded {
			if slices.Contains(d.Uplinks, x.Name) {
				r := ItemResult{Domain: d.Name, Uplink: x.Name, Reason: agentapi.ReasonAttachFailed, Problem: x.Why}
				if x.Why == uplink.NoInterface {
					r.Reason = agentapi.ReasonInterfaceNotFound
				}
				results = append(results, r)
			} else if !slices.ContainsFunc(all.Excluded, func(y uplink.Exclusion) bool { return y.Name == x.Name }) {
				all.Excluded = append(all.Excluded, x)
			}
		}
		all.Local = facts.Local
	}
	all.Excluded = slices.DeleteFunc(all.Excluded, func(x uplink.Exclusion) bool { // another domain took it
		return slices.ContainsFunc(all.Uplinks, func(u uplink.Uplink) bool { return u.Name == x.Name })
	})
	return all, results
}

// noRoute says why no interface was found by routes.
func noRoute(facts uplink.Facts) string {
	if len(facts.Excluded) > 0 {
		return fmt.Sprintf("no interface that routes to another site is taken: %s: %s", facts.Excluded[0].Name, facts.Excluded[0].Why)
	}
	return "no interface routes to another site's prefixes: add the route, or name the interface in the domain's uplinks"
}

// reasonOf is the documented reason for an error of the kernel.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, bpf.ErrPermission), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return agentapi.ReasonMissingCapability
	case errors.Is(err, bpf.ErrUnsupported):
		return agentapi.ReasonKernelUnsupported
	}
	return agentapi.ReasonAttachFailed
}

func (d *Domain) remotePrefixes() []netip.Prefix {
	var list []netip.Prefix
	for i := range d.Sites {
		if d.Sites[i].Name != d.Site {
			list = append(list, d.Sites[i].Prefixes...)
		}
	}
	return list
}

// bpfDomains is what the kernel program must know: who is inside (the boundary), and which addresses are endpoints of the own site.
func bpfDomains(cfg *Config) []bpf.Domain {
	out := make([]bpf.Domain, len(cfg.Domains))
	for i := range cfg.Domains {
		d := &cfg.Domains[i]
		out[i] = bpf.Domain{ID: uint32(i + 1), Ports: []uint16{d.Port}}
		for j := range d.Sites {
			out[i].Members = append(out[i].Members, d.Sites[j].Prefixes...)
			for _, g := range d.Sites[j].Gateways {
				out[i].Members = append(out[i].Members, netip.PrefixFrom(g, g.BitLen()))
			}
		}
		out[i].Members = append(out[i].Members, d.Reporters...)
		if own := d.ownSite(); own != nil {
			out[i].Served = own.Prefixes
		}
	}
	return out
}

func (e *Engine) openPort(old *snapshot, port uint16) (portState, error) {
	if old != nil {
		for _, p := range old.ports {
			if p.port == port {
				return p, nil
			}
		}
	}
	sockets, err := e.backend.OpenSockets(port, maxMTU)
	if err != nil {
		return portState{}, fmt.Errorf("open CREM port %d: %w; is another program using it?", port, err)
	}
	return portState{port: port, sockets: sockets}, nil
}

func (e *Engine) openUplink(old *snapshot, u uplink.Uplink) (uplinkState, error) {
	st := uplinkState{name: u.Name, index: u.Index, mtu: u.MTU, bare: u.Bare, why: u.Why}
	if old != nil {
		if have := old.uplinkOf(u.Index); have != nil && !have.gone() {
			st.taps, st.port = have.taps, have.port
			return st, nil
		}
	}
	taps, err := e.backend.OpenTaps(u)
	if err != nil {
		return st, fmt.Errorf("open the tap on %s: %w", u.Name, err)
	}
	if _, err := e.backend.Attach(u); err != nil {
		return st, errors.Join(fmt.Errorf("attach to %s: %w", u.Name, err), closeAll(taps))
	}
	st.taps, st.port, st.anew = taps, new(portCounters), true
	return st, nil
}

// retire closes what the new snapshot does not use, once no worker uses it.
func (e *Engine) retire(old, next *snapshot) {
	if old == nil {
		return
	}
	e.awaitWorkers(next.number)
	for _, p := range old.ports {
		if !slices.ContainsFunc(next.ports, func(x portState) bool { return x.port == p.port }) {
			_ = closeAll(p.sockets) // nothing can be done about a socket that will not close
		}
	}
	for _, u := range old.uplinks {
		kept := next.uplinkOf(u.index)
		if kept == nil || kept.anew {
			_ = closeAll(u.taps)
		}
		if kept == nil {
			_ = e.backend.Detach(u.index) // the interface may be gone, and its programs with it
		}
	}
}

// clear takes programs off interfaces that are not uplinks: an earlier agent put them there and did not see the change.
func (e *Engine) clear(facts uplink.Facts) {
	for _, index := range e.backend.Attached() {
		if !slices.ContainsFunc(facts.Uplinks, func(u uplink.Uplink) bool { return u.Index == index }) {
			_ = e.backend.Detach(index) // the interface may be gone, and its programs with it
		}
	}
}

// awaitWorkers returns when every running worker obeys the snapshot.
func (e *Engine) awaitWorkers(number uint64) {
	for _, w := range e.workers {
		for w.beatAt.Load() != 0 && w.seenSnap.Load() < number {
			if !e.moment() {
				return
			}
		}
	}
}

// stopping reports whether the engine was told to stop: workers then end without looking at a new snapshot.
func (e *Engine) stopping() bool {
	select {
	case <-e.stop:
		return true
	default:
		return false
	}
}

// millisecond is the moment of real time.
func (e *Engine) millisecond() bool {
	select {
	case <-e.stop:
		return false
	case <-time.After(time.Millisecond):
		return true
	}
}

func closeAll[T interface{ Close() error }](list []T) error {
	var errs []error
	for _, x := range list {
		errs = append(errs, x.Close())
	}
	return errors.Join(errs...)
}

// spareProcessors are for what is not packet work: the garbage collector, status, metrics.
const spareProcessors = 2

// Run works until ctx ends, then lets all packets go and returns. Apply must have been called. Programs and maps stay, pinned, and pass everything.
func (e *Engine) Run(ctx context.Context) error {
	e.mu.Lock()
	if !e.loaded {
		e.mu.Unlock()
		return errors.New("engine: no configuration was applied")
	}
	e.holder.SetBypass(false)
	// Workers keep a processor of the runtime while they nap; all else needs some beside them.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), len(e.workers)+spareProcessors))
	preferred := e.opts.Realtime && realtime.Prefer() == nil
	if preferred {
		e.running.Go(func() { realtime.Collect(e.stop, runtime.NumCPU()) })
	}
	for _, w := range e.workers {
		e.running.Add(1)
		w.realtime.Store(preferred)
		go func() {
			defer e.running.Done()
			runtime.LockOSThread() // its sleeps are a thread's own, and so is the core that the kernel gives it
			defer runtime.UnlockOSThread()
			w.run(e.stop)
		}()
	}
	e.mu.Unlock()
	go e.watchSecurity(ctx)
	e.running.Go(e.readPorts)
	e.running.Go(e.keepTunnels)
	e.running.Go(e.keepMarking)
	e.running.Go(e.keepKernel)
	watching := make(chan error, 1)
	go func() { watching <- e.backend.WatchUplinks(ctx, e.reapply) }()
	var err error
	select {
	case <-ctx.Done():
	case err = <-watching:
		if ctx.Err() == nil && err != nil {
			err = fmt.Errorf("watch interfaces: %w", err)
		}
		<-ctx.Done()
	}
	e.holder.SetBypass(true)
	close(e.stop)
	e.running.Wait()
	return errors.Join(err, e.closeKernel())
}

// reapply looks at the interfaces again, with the configuration in force.
func (e *Engine) reapply() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cfg != nil {
		_, _ = e.apply(e.cfg) // results are in Status
	}
}

func (e *Engine) closeKernel() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	if s := e.snap.Load(); s != nil {
		for _, p := range s.ports {
			errs = append(errs, closeAll(p.sockets))
		}
		for _, u := range s.uplinks {
			errs = append(errs, closeAll(u.taps))
		}
	}
	for _, w := range e.workers {
		errs = append(errs, w.inj.Close())
	}
	return errors.Join(append(errs, e.backend.Close())...)
}

// dropFromKernel takes a flow out of the kernel's table.
func (e *Engine) dropFromKernel(r *recvFlow) {
	if r.index >= 0 {
		_ = e.holder.UnregisterFlow(r.index) // an index of ours is always known
	}
}

// repairRate is a worker's share of the least node bound of all domains, in octets per second; 0: no bound.
func (e *Engine) repairRate(s *snapshot) int64 {
	var least int64
	for i := range s.cfg.Domains {
		if b := s.cfg.Domains[i].MaxRepairBandwidth; b > 0 && (least == 0 || b < least) {
			least = b
		}
	}
	return least / 8 / int64(len(e.workers))
}

// owners maps the names that peers gave to flows to the workers of those flows.
type owners struct {
	mu sync.RWMutex
	m  map[peerFlow]int
}

func (o *owners) add(k peerFlow, worker int) {
	o.mu.Lock()
	o.m[k] = worker
	o.mu.Unlock()
}

func (o *owners) remove(k peerFlow) {
	o.mu.Lock()
	delete(o.m, k)
	o.mu.Unlock()
}

func (o *owners) find(k peerFlow) (int, bool) {
	o.mu.RLock()
	w, ok := o.m[k]
	o.mu.RUnlock()
	return w, ok
}

// workerOf is the worker of a pair of hosts: the fold that taps use too (docs/design/seams.md).
func workerOf(a, b netip.Addr, workers int) int {
	return int((fold(a) ^ fold(b)) % uint32(workers))
}

func fold(a netip.Addr) uint32 {
	if a.Is4() {
		b := a.As4()
		return binary.BigEndian.Uint32(b[:])
	}
	b := a.As16()
	return binary.BigEndian.Uint32(b[:]) ^ binary.BigEndian.Uint32(b[4:]) ^ binary.BigEndian.Uint32(b[8:]) ^ binary.BigEndian.Uint32(b[12:])
}

// cryptoRandom reads a cryptographic source in blocks (Section 11: Flow IDs and nonces).
func cryptoRandom() func() uint64 {
	var mu sync.Mutex
	var block [4096]byte
	rest := block[:0]
	return func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		if len(rest) < 8 {
			_, _ = rand.Read(block[:]) // never fails: crypto/rand ends the program instead
			rest = block[:]
		}
		v := binary.LittleEndian.Uint64(rest)
		rest = rest[8:]
		return v
	}
}
