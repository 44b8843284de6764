// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"slices"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/uplink"
)

// leastBurstGap: a tap hands over what it has once a millisecond (packet.TapConfig.Retire), late by a scheduling delay of the worker. A flow
// is silent when four such batches brought nothing of it.
const leastBurstGap = 4 * time.Millisecond

// snapshot is one configuration with the kernel objects that it needs. Workers read it, the engine's control side makes it; nobody changes it.
type snapshot struct {
	number  uint64
	cfg     *Config
	uplinks []uplinkState
	ports   []portState
	local   map[netip.Addr]bool  // the node's own addresses
	ends    map[packet.Ends]bool // outer addresses of what arrives in tunnels, and of what leaves in them
	limiter limiter              // of flows in tunnels; nil: there are none
	results []ItemResult         // what became of the configuration's items

	excluded []uplink.Exclusion // interfaces that lead to another site and are no uplinks

	transports *roce.Transports // that are recognised

	sendParams map[sendParamsKey]*csf.Params
	recvParams map[*Profile]*crf.Params
}

type sendParamsKey struct {
	profile *Profile
	mtu     int
	site    string
}

// uplinkState is one interface that leads to other sites, with its taps, one per worker.
type uplinkState struct {
	name  string
	index int
	mtu   int
	bare  bool // its packets have no Ethernet header
	why   string
	taps  []packet.Tap
	port  *portCounters
	anew  bool // opened for this snapshot; else taken over from the one before
}

// gone reports whether the interface was taken away. One that is there under its index is another, or was in another network namespace meanwhile.
func (u *uplinkState) gone() bool {
	return slices.ContainsFunc(u.taps, packet.Tap.Gone)
}

// portState is the CREM port of one domain, with its sockets, one per worker.
type portState struct {
	port     uint16
	sockets  []packet.Socket
	own      []netip.Addr // gateway addresses of the own site that are this node's
	security *security    // nil: the domain does not require IPsec
}

// source is where a message leaves. Where the node is a gateway it is the gateway's, since the other site knows no other one of its
// addresses; the route to the peer might choose any. The zero Addr leaves it to the route. false: the message must not leave.
func (p *portState) source(to, from netip.Addr) (packet.Source, bool) {
	switch {
	case p.security != nil:
		return p.security.source(to)
	case from.IsValid():
		return packet.Source{Addr: from}, true
	}
	a, _ := ofFamily(p.own, to)
	return packet.Source{Addr: a}, true
}

// ofFamily is the first address of the family of to.
func ofFamily(list []netip.Addr, to netip.Addr) (netip.Addr, bool) {
	for _, a := range list {
		if a.Is4() == to.Is4() {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// csfParams are the profile's numbers for an uplink and a site. Equal arguments give the same pointer, so that a machine sees no change where
// there is none.
func (s *snapshot) csfParams(p *Profile, u *uplinkState, site *Site) *csf.Params {
	return s.sendParams[sendParamsKey{p, u.mtu, site.Name}]
}

func (s *snapshot) crfParams(p *Profile) *crf.Params { return s.recvParams[p] }

// resolve fills the tables of parameters. pool is the octets of memory of one worker.
func (s *snapshot) resolve(pool int64) {
	s.sendParams = make(map[sendParamsKey]*csf.Params)
	s.recvParams = make(map[*Profile]*crf.Params)
	for i := range s.cfg.Domains {
		d := &s.cfg.Domains[i]
		for _, r := range d.Rules {
			recv := r.Profile.CRF
			if recv.HoldBytes == 0 {
				recv.HoldBytes, recv.ReplayBytes = crf.Hold(0, recv.MaxHold, pool)
			}
			s.recvParams[r.Profile] = &recv
			for _, u := range s.uplinks {
				for _, site := range d.Sites {
					send := r.Profile.CSF
					send.PathMTU = u.mtu
					send.LeastBurstGap = leastBurstGap
					send.PeerSite = d.Name + "/" + site.Name
					s.sendParams[sendParamsKey{r.Profile, u.mtu, site.Name}] = &send
				}
			}
		}
	}
}

// allTaps are the taps of all uplinks. s may be nil.
func (s *snapshot) allTaps() (taps []packet.Tap) {
	if s == nil {
		return nil
	}
	for i := range s.uplinks {
		taps = append(taps, s.uplinks[i].taps...)
	}
	return taps
}

// recognises gives the transports that are recognised beside RoCEv2. s may be nil.
func (s *snapshot) recognises() *roce.Transports {
	if s == nil {
		return nil
	}
	return s.transports
}

// uplinkOf finds an uplink by its index; nil if the interface is none.
func (s *snapshot) uplinkOf(ifindex int) *uplinkState {
	for i := range s.uplinks {
		if s.uplinks[i].index == ifindex {
			return &s.uplinks[i]
		}
	}
	return nil
}

// obey takes up a new configuration: flows that it does not want any more are closed (reason 5), the others get their new parameters without
// losing a packet (PARAM_UPDATE, Section 5.2). What it wants sent by ports that are gone, or injected on interfaces that are no uplinks any more,
// leaves with the batch; only then is the snapshot seen, and what it does not use may be closed.
func (w *worker) obey() {
	next := w.e.snap.Load()
	if next == w.snap {
		return
	}
	w.parting = w.snap.portsNotIn(next)
	w.snap = next
	w.wait = packet.NewPoller(w.descriptors()...)
	w.csfEnv.Node.SetRate(w.e.repairRate(next))
	w.setPorts()
	for _, s := range w.sending {
		w.judgeAgain(s)
	}
	for _, r := range w.receiving {
		w.judgeReceiving(r)
	}
	w.endedSites.keep(next.cfg)
}

// portsNotIn lists the ports that another snapshot has no more. s may be nil.
func (s *snapshot) portsNotIn(next *snapshot) (gone []portState) {
	if s == nil {
		return nil
	}
	for _, p := range s.ports {
		if !slices.ContainsFunc(next.ports, func(x portState) bool { return x.port == p.port }) {
			gone = append(gone, p)
		}
	}
	return gone
}

// descriptors are what the worker waits on.
func (w *worker) descriptors() []int {
	var fds []int
	for i := range w.snap.uplinks {
		fds = append(fds, w.snap.uplinks[i].taps[w.id].FD())
	}
	for i := range w.snap.ports {
		fds = append(fds, w.snap.ports[i].sockets[w.id].FDs()...)
	}
	return fds
}
