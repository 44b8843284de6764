// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// Tunnel is an IP-in-IP tunnel to a gateway of another site. Its ends are of one IP version; what travels in it may be of either.
type Tunnel struct {
	Local, Remote netip.Addr
	Port          uint16 // the CREM port, by which requests are known
	MTU           int    // octets of the largest outer packet
	Compatibility bool   // outer Not-ECT always (RFC 6040)
}

// TunnelSite is another site.
type TunnelSite struct {
	Prefixes []netip.Prefix
	Tunnels  []Tunnel // what comes through any of them is taken
	Use      int      // index of the tunnel that flows take while it has a lease; -1: none
	VeRoCE   uint16   // UDP port of veRoCE that travels in tunnels; 0: none does
	Measured bool     // outer headers carry the colour of their period, and flows are counted by it (RFC 9341)
}

// TunnelPlan is everything that the programs of the tunnels must know.
type TunnelPlan struct {
	Own   []netip.Prefix // endpoints of the own site
	Sites []TunnelSite
}

// TunnelConfig is what the programs are loaded with.
type TunnelConfig struct {
	Mark    uint32        // of injected frames; default DefaultMark
	PinDir  string        // folder of the agent's pins; empty: all ends with the process
	Period  time.Duration // of Alternate Marking; default a second
	Uplinks *Objects      // whose programs see inner packets, also where they are attached later; nil: there are none
}

// tellEvery is how often a flow's marks of one level are told.
const tellEvery = 5 * time.Millisecond

// Tunnels are the loaded programs of tunnels and their maps. Set, Attach, Detach, Repair and Close are for one caller at a time, the other
// methods for any.
type Tunnels struct {
	hooks
	kernel  wanObjects
	entries []tunnelEntry
	chances []chancesEntry // by the same index
	promise *atomic.Uint64
	mapped  [][]byte
	marks   *ringbuf.Reader

	mu    sync.Mutex
	plan  *TunnelPlan // that the kernel took; nil: none yet
	index map[Tunnel]uint32
	free  []uint32 // the longest unused first
}

// tunnelEntry mirrors struct tunnel of wan_maps.h.
type tunnelEntry struct {
	until, hop, ifindex, asked atomic.Uint64
	mtu                        uint32
	mode, port                 uint16
	local, remote              [16]byte
}

var _ = [1]struct{}{}[unsafe.Sizeof(tunnelEntry{})-unsafe.Sizeof(wanTunnel{})]

// chancesEntry mirrors struct chances of wan_queue.h.
type chancesEntry struct{ until, marked, severe atomic.Uint64 }

var _ = [1]struct{}{}[unsafe.Sizeof(chancesEntry{})-unsafe.Sizeof(wanChances{})]

const (
	mostTunnels = 256
	noTunnel    = ^uint32(0)
	ownSite     = 0
)

func tunnelDir(pinDir string) string { return filepath.Join(pinDir, "tunnels") }

// LoadTunnels loads the programs. What an earlier agent with the same PinDir takes from tunnels stays as it is until Set; nothing
// goes into a tunnel before Lease. Errors are of type *Error.
func LoadTunnels(c TunnelConfig) (*Tunnels, error) {
	t := &Tunnels{hooks: newHooks(), index: map[Tunnel]uint32{}}
	if err := t.load(c); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Tunnels) load(c TunnelConfig) error {
	if c.Mark == 0 {
		c.Mark = DefaultMark
	}
	if c.Period == 0 {
		c.Period = time.Second
	}
	spec, err := loadWan()
	if err != nil {
		return fmt.Errorf("bpf: embedded programs of tunnels: %w", err)
	}
	for name, value := range map[string]any{wanVarMark: c.Mark, wanVarTellNs: uint64(tellEvery), wanVarPeriodNs: uint64(c.Period)} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("bpf: constant %s: %w", name, err)
		}
	}
	var options ebpf.CollectionOptions
	var promised time.Duration // by an agent whose maps had another layout
	if c.PinDir != "" {
		if promised, err = PromisedTo(c.PinDir); err != nil {
			return err
		}
		layout := sha256.Sum256(_WanBytes)
		if t.pins, err = openPins(tunnelDir(c.PinDir), hex.EncodeToString(layout[:8])); err != nil {
			return err
		}
		options.MapReplacements = t.pins.maps(spec)
	}
	err = spec.LoadAndAssign(&t.kernel, &options)
	for _, m := range options.MapReplacements {
		m.Close()
	}
	if err != nil {
		return explain(err, "load the programs of tunnels")
	}
	if err := t.mapMemory(); err != nil {
		return err
	}
	if _, err := t.SetClock(); err != nil {
		return err
	}
	if t.marks, err = ringbuf.NewReader(t.kernel.CremWanMarks); err != nil {
		return explain(err, "open the ring of marks")
	}
	for i := range t.entries {
		t.entries[i].until.Store(0)
		t.chances[i].until.Store(0)
		t.free = append(t.free, uint32(i))
	}
	if c.Uplinks != nil {
		c.Uplinks.inner = &t.hooks
	}
	if t.pins == nil {
		return nil
	}
	t.Promise(promised)
	if err := t.pins.save(t.kernel.byName(), options.MapReplacements != nil); err != nil {
		return err
	}
	return t.findLinks()
}

func (t *Tunnels) mapMemory() error {
	entries, err := mapPages(t.kernel.CremWanTunnels, memoryOf[tunnelEntry](mostTunnels))
	if err != nil {
		return err
	}
	t.mapped = append(t.mapped, entries)
	chances, err := mapPages(t.kernel.CremWanChances, memoryOf[chancesEntry](mostTunnels))
	if err != nil {
		return err
	}
	t.mapped = append(t.mapped, chances)
	promise, err := mapPages(t.kernel.CremWanPromise, memoryOf[uint64](1))
	if err != nil {
		return err
	}
	t.mapped = append(t.mapped, promise)
	t.entries = unsafe.Slice((*tunnelEntry)(unsafe.Pointer(unsafe.SliceData(entries))), mostTunnels)
	t.chances = unsafe.Slice((*chancesEntry)(unsafe.Pointer(unsafe.SliceData(chances))), mostTunnels)
	t.promise = (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(promise)))
	return nil
}

// Kept reports whether the programs outlive the process.
func (t *Tunnels) Kept() bool { return t.pins != nil }

// Attach puts the programs on both hooks of an interface of the calling thread's network namespace, which has Ethernet headers: on ingress before
// all that are there, so that they see inner packets, on egress behind. Errors are of type *Error; after one, Attach may be tried again.
func (t *Tunnels) Attach(ifindex int) (a Attachment, err error) {
	a.Ifindex = ifindex
	in, first := hook{ifindex, Ingress}, seat{t.kernel.CremWanIn, wanProgCremWanIn, link.Head()}
	if a.Ingress, err = t.attach(in, first, &a.Unchecked); err != nil {
		return a, err
	}
	overtaken, err := t.overtaken(in)
	if err != nil {
		return a, err
	}
	if overtaken {
		if err := t.release(in); err != nil {
			return a, err
		}
		if a.Ingress, err = t.attach(in, first, &a.Unchecked); err != nil {
			return a, err
		}
	}
	a.Egress, err = t.attach(hook{ifindex, Egress}, seat{t.kernel.CremWanOut, wanProgCremWanOut, link.Tail()}, &a.Unchecked)
	return a, err
}

// overtaken reports whether other programs were put before ours.
func (o *hooks) overtaken(h hook) (bool, error) {
	on, err := link.QueryPrograms(link.QueryOptions{Target: h.ifindex, Attach: h.attachType()})
	if err != nil {
		return false, explain(err, "look at the programs on %s", h)
	}
	info, err := o.links[h].Info()
	if err != nil {
		return false, explain(err, "look at the link on %s", h)
	}
	return len(on.Programs) > 0 && on.Programs[0].ID != info.Program, nil
}

// Set makes the tunnels those of a plan. It changes only what differs; a tunnel that is in both the old and the new plan keeps its lease.
// Errors: a plan that contradicts itself (nothing is changed then), or the kernel's refusal.
func (t *Tunnels) Set(plan TunnelPlan) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	wanted, err := plan.check()
	if err != nil {
		return err
	}
	for _, w := range wanted {
		if _, ok := t.index[w]; !ok {
			t.index[w] = t.enter(w)
		}
	}
	c, err := t.compare(plan)
	if err != nil {
		return err
	}
	if err := c.carryOut(); err != nil {
		return err
	}
	for w, i := range t.index {
		if !slices.Contains(wanted, w) {
			t.entries[i].until.Store(0)
			t.chances[i].until.Store(0)
			delete(t.index, w)
			t.free = append(t.free, i)
		}
	}
	t.plan = &plan
	return nil
}

// tunnelChange is what makes the maps of the plan the wanted ones.
type tunnelChange struct {
	ends   *change[wanEnds, wanEnd]
	places *change[wanNetmask, wanPlace]
}

// compare reads the maps of the plan.
func (t *Tunnels) compare(plan TunnelPlan) (c tunnelChange, err error) {
	if c.ends, err = difference(t.kernel.CremWanEnds, t.endsOf(plan)); err != nil {
		return c, err
	}
	c.places, err = difference(t.kernel.CremWanPlaces, t.placesOf(plan))
	return c, err
}

func (c *tunnelChange) carryOut() error {
	return inTurn(c.ends.add, c.places.add, c.places.remove, c.ends.remove)
}

// check returns the tunnels of the plan, each once.
func (p *TunnelPlan) check() ([]Tunnel, error) {
	var all []Tunnel
	seen := map[wanEnds]bool{}
	for _, s := range p.Sites {
		if s.Use >= len(s.Tunnels) {
			return nil, fmt.Errorf("bpf: tunnel %d of %d", s.Use, len(s.Tunnels))
		}
		for _, w := range s.Tunnels {
			if !w.Local.IsValid() || w.Local.Is4() != w.Remote.Is4() || w.Local.Is4In6() || w.Remote.Is4In6() || w.MTU < 1280 || w.MTU > 1<<16-1 {
				return nil, fmt.Errorf("bpf: no tunnel is possible from %v to %v with %d octets", w.Local, w.Remote, w.MTU)
			}
			if seen[endsOf(w)] {
				return nil, fmt.Errorf("bpf: two tunnels from %v to %v", w.Local, w.Remote)
			}
			seen[endsOf(w)] = true
			all = append(all, w)
		}
	}
	if len(all) > mostTunnels/2 { // those of the plan before stay until the new ones are there
		return nil, fmt.Errorf("bpf: %d tunnels, at most %d", len(all), mostTunnels/2)
	}
	return all, nil
}

// enter fills in an entry that nothing names.
func (t *Tunnels) enter(w Tunnel) uint32 {
	i := t.free[0]
	t.free = t.free[1:]
	e := &t.entries[i]
	e.hop.Store(0)
	e.ifindex.Store(0)
	e.asked.Store(0)
	e.fill(w)
	return i
}

// fill writes what stays of an entry, with the tunnel closed.
func (e *tunnelEntry) fill(w Tunnel) {
	e.until.Store(0)
	e.mtu, e.port, e.local, e.remote, e.mode = uint32(w.MTU), w.Port, w.Local.As16(), w.Remote.As16(), w.mode()
}

// is reports whether an entry has what stays of it.
func (e *tunnelEntry) is(w Tunnel) bool {
	return e.mtu == uint32(w.MTU) && e.port == w.Port && e.local == w.Local.As16() && e.remote == w.Remote.As16() && e.mode == w.mode()
}

func (w Tunnel) mode() uint16 {
	if w.Compatibility {
		return 1
	}
	return 0
}

func endsOf(w Tunnel) wanEnds { return wanEnds{Local: w.Local.As16(), Remote: w.Remote.As16()} }

func (s *TunnelSite) measured() uint32 {
	if s.Measured {
		return 1
	}
	return 0
}

func (t *Tunnels) endsOf(plan TunnelPlan) map[wanEnds]wanEnd {
	m := map[wanEnds]wanEnd{}
	for i, s := range plan.Sites {
		for _, w := range s.Tunnels {
			m[endsOf(w)] = wanEnd{Site: uint32(i + 1), Tunnel: t.index[w], Measured: s.measured()}
		}
	}
	return m
}

func (t *Tunnels) placesOf(plan TunnelPlan) map[wanNetmask]wanPlace {
	m := map[wanNetmask]wanPlace{}
	put := func(list []netip.Prefix, place wanPlace) {
		for _, p := range list {
			bits := p.Bits()
			if p.Addr().Is4() {
				bits += mappedBits
			}
			m[wanNetmask{Len: uint32(bits), Addr: p.Masked().Addr().As16()}] = place
		}
	}
	for i, s := range plan.Sites {
		place := wanPlace{Site: uint32(i + 1), Tunnel: noTunnel, VerocePort: s.VeRoCE, Measured: uint16(s.measured())}
		if s.Use >= 0 {
			place.Tunnel = t.index[s.Tunnels[s.Use]]
		}
		put(s.Prefixes, place)
	}
	put(plan.Own, wanPlace{Site: ownSite, Tunnel: noTunnel})
	return m
}

// Lease lets flows into a tunnel until a time on the clock of packet.Now; 0 ends it. A tunnel that is not in the plan is left alone.
func (t *Tunnels) Lease(w Tunnel, until time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i, ok := t.index[w]; ok {
		t.entries[i].until.Store(uint64(until))
	}
}

// Leased is until when flows go into a tunnel, and the uplink by which they may: 0 before a request has left.
func (t *Tunnels) Leased(w Tunnel) (until time.Duration, ifindex int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.index[w]
	if !ok {
		return 0, 0
	}
	return time.Duration(t.entries[i].until.Load()), int(t.entries[i].ifindex.Load())
}

// Asked is when the last request went into a tunnel, on the clock of packet.Now; 0: none did.
func (t *Tunnels) Asked(w Tunnel) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i, ok := t.index[w]; ok {
		return time.Duration(t.entries[i].asked.Load())
	}
	return 0
}

// Mark has packets that go into a tunnel marked in their outer header, until a time on the clock of packet.Now: with either mark by the chance marked,
// with CE by severe, which is not more. Not-ECT and CE stay as they are, and so does everything where the outer header is always Not-ECT.
func (t *Tunnels) Mark(w Tunnel, marked, severe float64, until time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.index[w]
	if !ok {
		return
	}
	c := &t.chances[i]
	c.marked.Store(uint64(marked * chanceOne))
	c.severe.Store(uint64(severe * chanceOne))
	c.until.Store(uint64(until))
}

// chanceOne is what the programs mean by always.
const chanceOne = 1 << 32

// Promise notes until when another site may send into a tunnel to this node: so long the programs must stay attached.
func (t *Tunnels) Promise(until time.Duration) {
	for {
		old := t.promise.Load()
		if old >= uint64(until) || t.promise.CompareAndSwap(old, uint64(until)) {
			return
		}
	}
}

// Promised is the latest time that was given to Promise, by this agent or an earlier one.
func (t *Tunnels) Promised() time.Duration { return time.Duration(t.promise.Load()) }

// PromisedTo is until when other sites may send into tunnels to this node, whatever agent with this pin folder promised it; 0: not at all.
func PromisedTo(pinDir string) (until time.Duration, err error) {
	found, err := filepath.Glob(filepath.Join(tunnelDir(pinDir), mapsPrefix+"*", wanMapCremWanPromise))
	if err != nil {
		return 0, fmt.Errorf("bpf: list pinned maps of tunnels: %w", err)
	}
	for _, path := range found {
		m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			return 0, explain(err, "open pinned map %s", path)
		}
		var promised uint64
		key := uint32(0)
		err = m.Lookup(&key, &promised)
		m.Close()
		if err != nil {
			return 0, explain(err, "read pinned map %s", path)
		}
		until = max(until, time.Duration(promised))
	}
	return until, nil
}

// TunnelFlow names a flow in a tunnel: what goes to one queue pair.
type TunnelFlow struct {
	Src, Dst netip.Addr
	QPN      uint32
}

func newFlowName(f TunnelFlow) wanFlowName {
	return wanFlowName{Src: f.Src.As16(), Dst: f.Dst.As16(), Qpn: f.QPN}
}

// Limit marks what a flow sends into its tunnel over a rate, until a time on the clock of packet.Now. Packets may come early by burst.
func (t *Tunnels) Limit(f TunnelFlow, octetsPerSecond int64, burst, until time.Duration) error {
	name := newFlowName(f)
	var l wanLimit
	if err := t.kernel.CremWanLimits.Lookup(&name, &l); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return explain(err, "read the limit of a flow")
	}
	l.BurstNs, l.Until = uint64(burst), uint64(until)
	l.NsPerKib = max(uint64(time.Second)*1024/uint64(max(octetsPerSecond, 1)), 1)
	if err := t.kernel.CremWanLimits.Put(&name, &l); err != nil {
		return explain(err, "limit a flow")
	}
	return nil
}

// Unlimit takes a flow's limit away.
func (t *Tunnels) Unlimit(f TunnelFlow) error {
	name := newFlowName(f)
	if err := t.kernel.CremWanLimits.Delete(&name); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return explain(err, "free a flow of its limit")
	}
	return nil
}

// Mark tells that packets of a flow met congestion in a tunnel to this node, or in the queue before the tunnel that they take from it.
type Mark struct {
	Flow          TunnelFlow
	Severe        bool // CE; else the early warning
	Own           bool // the queue is this node's
	Local, Remote netip.Addr
}

// met mirrors struct met of wan_maps.h.
type met struct {
	flow  struct{ src, dst [16]byte }
	qpn   uint32
	level uint8
	own   uint8
	_     [2]byte
	ends  wanEnds
}

const levelSevere = 2

// ReadMark waits for the next mark. It returns an error once the Tunnels are closed.
func (t *Tunnels) ReadMark() (Mark, error) {
	for {
		r, err := t.marks.Read()
		if err != nil {
			return Mark{}, explain(err, "read a mark")
		}
		if len(r.RawSample) < int(unsafe.Sizeof(met{})) {
			continue
		}
		m := (*met)(unsafe.Pointer(unsafe.SliceData(r.RawSample)))
		addr := func(b [16]byte) netip.Addr { return netip.AddrFrom16(b).Unmap() }
		return Mark{
			Flow: TunnelFlow{Src: addr(m.flow.src), Dst: addr(m.flow.dst), QPN: m.qpn}, Severe: m.level == levelSevere, Own: m.own != 0,
			Local: addr(m.ends.Local), Remote: addr(m.ends.Remote),
		}, nil
	}
}

// Close ends ReadMark and frees what the process holds. Without PinDir that detaches the programs; with it they stay: what comes through
// tunnels is taken, and nothing goes into one after the end of its lease.
func (t *Tunnels) Close() error {
	var errs []error
	if t.marks != nil {
		errs = append(errs, t.marks.Close())
	}
	for _, l := range t.links {
		errs = append(errs, l.Close())
	}
	for _, m := range t.mapped {
		errs = append(errs, unix.Munmap(m))
	}
	if t.kernel.CremWanIn != nil {
		errs = append(errs, t.kernel.Close())
	}
	if t.pins != nil {
		errs = append(errs, t.pins.close())
	}
	t.links, t.mapped, t.entries, t.chances, t.pins = nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// RemoveTunnels removes what agents with this pin folder left of tunnels and nothing else. The time of PromisedTo must be over. Errors
// are of type *Error.
func RemoveTunnels(pinDir string) error { return uninstall(tunnelDir(pinDir)) }

func (m *wanMaps) byName() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		wanMapCremWanArrived: m.CremWanArrived, wanMapCremWanEntered: m.CremWanEntered,
		wanMapCremWanCells: m.CremWanCells, wanMapCremWanChances: m.CremWanChances, wanMapCremWanCounts: m.CremWanCounts, wanMapCremWanEnds: m.CremWanEnds,
		wanMapCremWanLimits: m.CremWanLimits, wanMapCremWanMarks: m.CremWanMarks, wanMapCremWanPlaces: m.CremWanPlaces,
		wanMapCremWanPromise: m.CremWanPromise, wanMapCremWanTold: m.CremWanTold, wanMapCremWanTunnels: m.CremWanTunnels,
		wanMapCremWanWide: m.CremWanWide,
	}
}
