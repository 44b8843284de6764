// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/ipsec"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/reporter"
	"crem.dev/crem/agent/uplink"
)

// Backend is the kernel as the engine sees it. Linux is the real one; tests put memory in its place.
type Backend interface {
	// Load prepares programs and rings for this many workers; slotMTU is the largest IP MTU of the uplinks. Called once, before the rest.
	Load(workers, slotMTU int) error
	Holder() packet.Holder
	Ring(worker int) packet.Ring
	OpenTaps(u uplink.Uplink) ([]packet.Tap, error) // one per worker
	OpenInjector() (packet.Injector, error)
	OpenSockets(port uint16, maxMessage int) ([]packet.Socket, error) // one per worker
	Attach(u uplink.Uplink) (mode string, err error)
	Detach(ifindex int) error
	Attached() []int // interfaces with programs of ours, also those that an earlier agent left
	SetDomains(domains []bpf.Domain, local []netip.Addr) error
	// SetTransports says what is recognised beside RoCEv2, to the programs, to the taps that are open, and to those that OpenTaps opens from now on.
	SetTransports(r packet.Recognised, open []packet.Tap) error
	// Repair makes what somebody else changed of all this as it was, and gives a sentence for each difference.
	Repair() (found []string, err error)
	// Tunnels loads the programs of tunnels; they are on no uplink yet but where an earlier agent left them.
	Tunnels() (Tunnels, error)
	// DropTunnels takes them away, and what an earlier agent left of them. Not done: until then another site may still send into a
	// tunnel to this node.
	DropTunnels() (done bool, err error)
	Counters() (map[string]uint64, error)
	PortCounters(ifindex int) (uplink.Counters, error)
	// Queued is the octets that wait before an interface.
	Queued(ifindex int) (int64, error)
	FindUplinks(names []string, remote []netip.Prefix) (uplink.Facts, error)
	WatchUplinks(ctx context.Context, changed func()) error
	Leads(to netip.Prefix) ([]uplink.Lead, error)
	ListPolicies() ([]ipsec.Policy, error)
	WatchPolicies(ctx context.Context, changed func()) error
	Close() error
}

// Tunnels are the kernel's programs of tunnels.
type Tunnels interface {
	Kept() bool // they outlive the process
	// Attach puts them on an uplink, whose own programs are there. After an error it may be tried again.
	Attach(ifindex int) (bpf.Attachment, error)
	Detach(ifindex int) error
	Attached() []int
	Set(bpf.TunnelPlan) error
	// Repair makes what somebody else changed as Attach and Set made it, and gives a sentence for each difference.
	Repair() (found []string, err error)
	Lease(t bpf.Tunnel, until time.Duration)
	Leased(t bpf.Tunnel) (until time.Duration, ifindex int)
	Asked(bpf.Tunnel) time.Duration // when the last request went into it; 0: none did
	// Mark has packets into a tunnel marked, by the chances of any mark and of CE.
	Mark(t bpf.Tunnel, marked, severe float64, until time.Duration)
	Promise(until time.Duration)
	Promised() time.Duration
	limiter
	ReadMark() (bpf.Mark, error) // waits; an error is the end
	Stats() (bpf.TunnelStats, error)
	// SetClock brings their clock in line with the system's; it jumped by that, or not.
	SetClock() (jumped bool, err error)
	Arrived(yield func(*bpf.FlowCounts)) error // what was counted as it came out of tunnels that are measured
	Entered(yield func(*bpf.FlowCounts)) error // the same as it went into them
	EnteredOf(t bpf.Tunnel, f bpf.TunnelFlow) (c reporter.Counts, known bool, err error)
	ForgetCounts(since uint32) error // of flows without packets since a period
}

// Linux is the Backend of a real node.
type Linux struct {
	PinDir string // bpffs folder in which links and maps outlive the agent; empty: nothing is pinned
	Mark   uint32 // packet mark of injected frames; 0: the default
	// Management gives the addresses that the node itself needs; the interfaces that lead there are uplinks only by name. nil: there are none.
	Management func() []netip.Addr

	objects    *bpf.Objects
	workers    int
	recognised packet.Recognised
	tunnels    *bpf.Tunnels
}

// defaultMark reads "CREM".
const defaultMark = 0x4352454d

// Load implements Backend.
func (l *Linux) Load(workers, slotMTU int) error {
	if l.Mark == 0 {
		l.Mark = defaultMark
	}
	l.workers = workers
	var err error
	l.objects, err = bpf.Load(bpf.Config{Workers: workers, SlotOctets: slotMTU + ethernetRoom, Mark: l.Mark, PinDir: l.PinDir})
	return err
}

// ethernetRoom is what a frame has in front of its IP packet.
const ethernetRoom = 14

// Holder implements Backend.
func (l *Linux) Holder() packet.Holder { return l.objects }

// Ring implements Backend.
func (l *Linux) Ring(worker int) packet.Ring { return l.objects.Ring(worker) }

// OpenTaps implements Backend.
func (l *Linux) OpenTaps(u uplink.Uplink) ([]packet.Tap, error) {
	return packet.OpenTaps(packet.TapConfig{
		Ifindex: u.Index, Bare: u.Bare, Workers: l.workers, Mark: l.Mark, Recognised: l.recognised,
	})
}

// OpenInjector implements Backend.
func (l *Linux) OpenInjector() (packet.Injector, error) {
	return packet.OpenInjector(packet.InjectorConfig{Mark: l.Mark})
}

// OpenSockets implements Backend.
func (l *Linux) OpenSockets(port uint16, maxMessage int) ([]packet.Socket, error) {
	return packet.OpenSockets(packet.SocketConfig{Port: port, Workers: l.workers, MaxMessage: maxMessage, IPv4: true, IPv6: true})
}

// Attach implements Backend.
func (l *Linux) Attach(u uplink.Uplink) (string, error) {
	if _, err := l.objects.Attach(u.Index, u.Bare); err != nil {
		return "", err
	}
	return "tcx", nil
}

// Tunnels implements Backend.
func (l *Linux) Tunnels() (Tunnels, error) {
	if l.tunnels != nil {
		return l.tunnels, nil
	}
	tunnels, err := bpf.LoadTunnels(bpf.TunnelConfig{Mark: l.Mark, PinDir: l.PinDir, Period: markingPeriod, Uplinks: l.objects})
	if err != nil {
		return nil, err
	}
	l.tunnels = tunnels
	return tunnels, nil
}

// DropTunnels implements Backend.
func (l *Linux) DropTunnels() (done bool, err error) {
	var promised time.Duration
	switch {
	case l.tunnels != nil:
		promised = l.tunnels.Promised()
	case l.PinDir != "":
		if promised, err = bpf.PromisedTo(l.PinDir); err != nil {
			return false, err
		}
	}
	if packet.Now() < promised {
		return false, nil
	}
	if l.tunnels != nil {
		err = l.tunnels.Close()
		l.tunnels = nil
	}
	if l.PinDir != "" {
		err = errors.Join(err, bpf.RemoveTunnels(l.PinDir))
	}
	return true, err
}

// Detach implements Backend.
func (l *Linux) Detach(ifindex int) error { return l.objects.Detach(ifindex) }

// Attached implements Backend.
func (l *Linux) Attached() []int { return l.objects.Attached() }

// SetDomains implements Backend.
func (l *Linux) SetDomains(domains []bpf.Domain, local []netip.Addr) error {
	return l.objects.SetDomains(domains, local)
}

// SetTransports implements Backend. The programs are told every time: their map may be that of an earlier agent.
func (l *Linux) SetTransports(r packet.Recognised, open []packet.Tap) error {
	if err := l.objects.SetTransports(r); err != nil || r == l.recognised {
		return err
	}
	if err := packet.Refilter(open, r); err != nil {
		return err
	}
	l.recognised = r
	return nil
}

// Repair implements Backend.
func (l *Linux) Repair() ([]string, error) { return l.objects.Repair() }

// Counters implements Backend.
func (l *Linux) Counters() (map[string]uint64, error) {
	stats, err := l.objects.Stats()
	if err != nil {
		return nil, err
	}
	m := make(map[string]uint64, len(stats))
	for i, n := range stats {
		m[bpf.Reason(i).String()] = n
	}
	return m, nil
}

// PortCounters implements Backend.
func (l *Linux) PortCounters(ifindex int) (uplink.Counters, error) {
	return uplink.ReadCounters(ifindex)
}

// Queued implements Backend.
func (l *Linux) Queued(ifindex int) (int64, error) { return uplink.Queued(ifindex) }

// FindUplinks implements Backend.
func (l *Linux) FindUplinks(names []string, remote []netip.Prefix) (uplink.Facts, error) {
	c := uplink.Config{Names: names, Remote: remote}
	if l.Management != nil {
		c.Management = l.Management()
	}
	return uplink.Find(c)
}

// WatchUplinks implements Backend.
func (l *Linux) WatchUplinks(ctx context.Context, changed func()) error {
	return uplink.Watch(ctx, changed)
}

// Leads implements Backend.
func (l *Linux) Leads(to netip.Prefix) ([]uplink.Lead, error) { return uplink.Leads(to) }

// ListPolicies implements Backend.
func (l *Linux) ListPolicies() ([]ipsec.Policy, error) { return ipsec.List() }

// WatchPolicies implements Backend.
func (l *Linux) WatchPolicies(ctx context.Context, changed func()) error {
	return ipsec.Watch(ctx, changed)
}

// Close implements Backend. Programs stay attached when they are pinned.
func (l *Linux) Close() error {
	var errs []error
	if l.tunnels != nil {
		errs = append(errs, l.tunnels.Close())
	}
	if l.objects != nil {
		errs = append(errs, l.objects.Close())
	}
	return errors.Join(errs...)
}
