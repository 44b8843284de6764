// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"crem.dev/crem/agent/ipsec"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/uplink"
)

const (
	// lookAgain is how often policies are read without being told to: a message of the kernel may be lost.
	lookAgain = 30 * time.Second
	// trustOld is how long the last policies that could be read count while they can not be read.
	trustOld = time.Minute
)

// security is what XFRM policies say about a domain with RequireIPsec. The zero value protects nothing.
type security struct {
	secured bool         // the policies cover everything, and have for long enough
	speaks  bool         // the policies cover the CREM messages that leave, so that CLOSE can be said
	mine    []netip.Addr // gateway addresses of the own site that are this node's: the only ones that policies are known to cover
	missing string       // why it is not secured, in words
	// via are the XFRM interfaces by which messages to and from gateways of other sites go, since it is their policies that cover them.
	via map[netip.Addr]int
}

// barred reports whether nothing of the domain may be protected for want of IPsec.
func (d *Domain) barred() bool { return d.RequireIPsec && !d.security.secured }

// admits reports whether a message may be listened to. Where IPsec is required, only what the policies cover is: from a gateway's CREM port to a gateway
// address of this node.
func (d *Domain) admits(m *packet.Message) bool {
	if !d.RequireIPsec {
		return true
	}
	via := d.security.via[m.From.Addr()]
	return d.security.secured && m.From.Port() == d.Port && d.isGateway(m.From.Addr()) && slices.Contains(d.security.mine, m.To) && (via == 0 || via == m.Ifindex)
}

// source is where a message to a gateway must leave so that the policies cover it; false: it must not leave.
func (s *security) source(to netip.Addr) (packet.Source, bool) {
	if !s.speaks {
		return packet.Source{}, false
	}
	a, ok := ofFamily(s.mine, to)
	return packet.Source{Addr: a, Ifindex: s.via[to]}, ok
}

func (c *Config) requiresIPsec() bool {
	return slices.ContainsFunc(c.Domains, func(d Domain) bool { return d.RequireIPsec })
}

// policies are the XFRM policies as they were read last.
type policies struct {
	list   []ipsec.Policy
	at     time.Duration // when they were read; 0: never
	guards map[string]*ipsec.Guard
}

// secure is the configuration with what policies say about its domains.
func (e *Engine) secure(cfg *Config, found uplink.Facts) *Config {
	if !cfg.requiresIPsec() {
		e.xfrm = policies{}
		return cfg
	}
	now := e.now()
	list, err := e.backend.ListPolicies()
	switch {
	case err == nil:
		e.xfrm.list, e.xfrm.at = list, now
	case e.xfrm.at != 0 && now-e.xfrm.at < trustOld && !errors.Is(err, ipsec.ErrUnsupported):
		err = nil // a dump that failed says nothing about policies
	}
	out := *cfg
	out.Domains = slices.Clone(cfg.Domains)
	guards := make(map[string]*ipsec.Guard)
	for i := range out.Domains {
		d := &out.Domains[i]
		if !d.RequireIPsec {
			continue
		}
		g := e.xfrm.guards[d.Name]
		if g == nil {
			g = new(ipsec.Guard)
		}
		guards[d.Name] = g
		facts := d.ipsecFacts(found.Local)
		problem := err
		if problem == nil {
			facts.IfIDs, d.security.via, problem = e.xfrmInterfaces(d, found.Uplinks)
		}
		verdict := ipsec.Verdict{}
		if problem == nil {
			verdict = ipsec.Check(e.xfrm.list, facts)
		} else {
			verdict.Missing = []string{problem.Error()}
		}
		d.security.secured = g.Judge(now, verdict)
		d.security.speaks, d.security.missing = g.Messages(), g.Problem()
		d.security.mine = d.ownGateways(found.Local)
	}
	e.xfrm.guards = guards
	return &out
}

// xfrmInterfaces tells, for a domain with XFRM interfaces among its uplinks, by which devices packets to the other sites go: the if_ids
// whose policies must cover each prefix and gateway, and the XFRM interface of each gateway. What leaves by an XFRM interface is
// encrypted or dropped by the kernel; whatever may leave by another device must be covered by policies without an if_id too.
func (e *Engine) xfrmInterfaces(d *Domain, uplinks []uplink.Uplink) (ids map[netip.Prefix][]uint32, via map[netip.Addr]int, err error) {
	var all []uint32
	for _, u := range uplinks {
		if (len(d.Uplinks) == 0 || slices.Contains(d.Uplinks, u.Name)) && !slices.Contains(all, u.IfID) {
			all = append(all, u.IfID)
		}
	}
	plain := slices.Contains(all, 0)
	if len(all) == 0 || plain && len(all) == 1 {
		return nil, nil, nil
	}
	ids, via = make(map[netip.Prefix][]uint32), make(map[netip.Addr]int)
	for _, p := range d.remotePrefixes() {
		leads, err := e.backend.Leads(p)
		if err != nil {
			return nil, nil, err
		}
		ids[p] = ifIDs(leads)
		switch {
		case len(leads) == 0:
			ids[p] = all // a route that is added goes by any of them
		case plain && !slices.Contains(ids[p], 0):
			ids[p] = append(ids[p], 0)
		}
	}
	for _, g := range d.otherGateways() {
		p := netip.PrefixFrom(g, g.BitLen())
		leads, err := e.backend.Leads(p)
		if err != nil {
			return nil, nil, err
		}
		if len(leads) > 0 && leads[0].IfID != 0 { // the next hop in use comes first; messages are held to it
			ids[p], via[g] = []uint32{leads[0].IfID}, leads[0].Index
		}
	}
	return ids, via, nil
}

func ifIDs(leads []uplink.Lead) (ids []uint32) {
	for _, l := range leads {
		if !slices.Contains(ids, l.IfID) {
			ids = append(ids, l.IfID)
		}
	}
	return ids
}

// otherGateways are the gateways of the other sites.
func (d *Domain) otherGateways() (list []netip.Addr) {
	for i := range d.Sites {
		if d.Sites[i].Name != d.Site {
			list = append(list, d.Sites[i].Gateways...)
		}
	}
	return list
}

// ownGateways are the gateway addresses of the own site that are this node's.
func (d *Domain) ownGateways(local []netip.Addr) (own []netip.Addr) {
	s := d.ownSite()
	if s == nil {
		return nil
	}
	for _, a := range s.Gateways {
		if slices.Contains(local, a) {
			own = append(own, a)
		}
	}
	return own
}

func (d *Domain) ipsecFacts(local []netip.Addr) ipsec.Facts {
	f := ipsec.Facts{Port: d.Port, Local: local}
	if d.Transports.VeRoCE.Enabled {
		f.VeRoCE = d.Transports.VeRoCE.Port
	}
	for _, s := range d.Sites {
		site := ipsec.Site{Name: s.Name, Prefixes: s.Prefixes, Gateways: s.Gateways}
		if s.Name == d.Site {
			f.Own = site
		} else {
			f.Others = append(f.Others, site)
		}
	}
	return f
}

// watchSecurity judges the domains again whenever policies change, until ctx ends. Without a domain that requires IPsec nothing is read.
func (e *Engine) watchSecurity(ctx context.Context) {
	watching := false
	for ctx.Err() == nil {
		wait, needed := e.judgeSecurity()
		if needed && !watching {
			watching = true
			go e.tellPolicies(ctx)
		}
		select {
		case <-ctx.Done():
		case <-e.look:
		case <-time.After(wait):
		}
	}
}

// tellPolicies wakes watchSecurity at every change. Where the kernel can not be watched, looking from time to time is what is left.
func (e *Engine) tellPolicies(ctx context.Context) {
	for ctx.Err() == nil {
		_ = e.backend.WatchPolicies(ctx, e.lookSoon) // its failure is met by trying again
		select {
		case <-ctx.Done():
		case <-time.After(lookAgain):
		}
	}
}

func (e *Engine) lookSoon() {
	select {
	case e.look <- struct{}{}:
	default: // one is waiting already
	}
}

// exchange puts the configuration in force with what policies say now. Nothing else is looked at or opened, so nothing can keep it from being obeyed.
func (e *Engine) exchange(old *snapshot, cfg *Config) {
	next := new(snapshot)
	*next = *old
	next.cfg, next.ports = cfg, slices.Clone(old.ports)
	for i := range next.ports {
		p := &next.ports[i]
		if d := cfg.domainByPort(p.port); d != nil && d.RequireIPsec {
			p.security = &d.security
		}
	}
	next.resolve(e.workerMemory())
	e.numbers++
	next.number = e.numbers
	e.snap.Store(next)
	if e.opts.Changed != nil {
		e.opts.Changed()
	}
}

// judgeSecurity exchanges the snapshot if policies say something else about its domains, and tells when to look next.
func (e *Engine) judgeSecurity() (wait time.Duration, needed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	snap := e.snap.Load()
	if e.cfg == nil || snap == nil || !e.cfg.requiresIPsec() {
		return lookAgain, false
	}
	next := e.secure(e.cfg, e.facts)
	for i := range next.Domains {
		a, b := &next.Domains[i].security, &snap.cfg.Domains[i].security
		if a.secured != b.secured || a.speaks != b.speaks || a.missing != b.missing || !maps.Equal(a.via, b.via) {
			e.exchange(snap, next)
			break
		}
	}
	wait = lookAgain
	for _, g := range e.xfrm.guards {
		if w := g.Wait(e.now()); w > 0 {
			wait = min(wait, w)
		}
	}
	return wait, true
}
