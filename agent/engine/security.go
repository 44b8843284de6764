// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"crem.dev/crem/agent/ipsec"
	"crem.dev/crem/agent/packet"
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
}

// barred reports whether nothing of the domain may be protected for want of IPsec.
func (d *Domain) barred() bool { return d.RequireIPsec && !d.security.secured }

// admits reports whether a message may be listened to. Where IPsec is required, only what the policies cover is: from a gateway's CREM port to a gateway
// address of this node.
func (d *Domain) admits(m *packet.Message) bool {
	if !d.RequireIPsec {
		return true
	}
	return d.security.secured && m.From.Port() == d.Port && d.isGateway(m.From.Addr()) && slices.Contains(d.security.mine, m.To)
}

// source is the address from which a message to a gateway must leave so that the policies cover it; false: it must not leave.
func (s *security) source(to netip.Addr) (netip.Addr, bool) {
	if !s.speaks {
		return netip.Addr{}, false
	}
	return ofFamily(s.mine, to)
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
func (e *Engine) secure(cfg *Config, local []netip.Addr) *Config {
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
		facts := d.ipsecFacts(local)
		verdict := ipsec.Verdict{}
		if err == nil {
			verdict = ipsec.Check(e.xfrm.list, facts)
		} else {
			verdict.Missing = []string{err.Error()}
		}
		d.security.secured = g.Judge(now, verdict)
		d.security.speaks, d.security.missing = g.Messages(), g.Problem()
		d.security.mine = d.ownGateways(local)
	}
	e.xfrm.guards = guards
	return &out
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
	next := &snapshot{cfg: cfg, uplinks: old.uplinks, ports: slices.Clone(old.ports), local: old.local}
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
	next := e.secure(e.cfg, e.local)
	for i := range next.Domains {
		a, b := &next.Domains[i].security, &snap.cfg.Domains[i].security
		if a.secured != b.secured || a.speaks != b.speaks || a.missing != b.missing {
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
