// SPDX-License-Identifier: Apache-2.0

package reporter

import (
	"math"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// Octets of a PATH_REPORT (Section 9.7).
const (
	headOctets  = 8 + 4 + 4 // header, method to Reserved, Flow Label
	entryOctets = 20
	psnOctets   = 4
	udpOctets   = 8
)

// overhead is what a report about flow needs beside its Hop Entries. The IP header is reckoned as IPv6 with a report about IPv6: what a
// reporter does not know of the CSF's address it takes to be the larger.
func overhead(f *Flow) int {
	const ipv4, ipv6 = 20, 40
	n := ipv6 + udpOctets + headOctets
	if f.Src.Is4() {
		return n + 2*4
	}
	return n + 2*16
}

// report is a PATH_REPORT in the making. Its memory is that of one message of the path MTU.
type report struct {
	flow      Flow
	known     *flow // what is known of it
	method    wire.Method
	used      bool
	drop      bool          // it tells of a drop: the short limit holds
	truncated bool          // a PSN did not fit
	since     time.Duration // its first event
	due       time.Duration
	room      int // octets that are left

	hops  [wire.MaxHops]wire.Hop // without PSNs
	count [wire.MaxHops]int      // PSNs of each
	own   [wire.MaxHops]bool     // this node's: numbered when the report leaves
	n     int
	psns  []named
}

// named is a dropped PSN and the entry that names it.
type named struct {
	hop uint8
	psn roce.PSN
}

// begin makes an empty report about a flow.
func (r *report) begin(now time.Duration, k Flow, f *flow, method wire.Method, mtu int) {
	*r = report{flow: k, known: f, method: method, used: true, since: now, room: mtu - overhead(&k), psns: r.psns[:0]}
}

// entry returns the number of a new Hop Entry, -1 if there is no place for it.
func (r *report) entry(h wire.Hop, own bool) int {
	if r.n == wire.MaxHops || r.room < entryOctets {
		return -1
	}
	h.PSNs = nil
	r.hops[r.n], r.count[r.n], r.own[r.n] = h, 0, own
	r.room -= entryOctets
	r.n++
	return r.n - 1
}

// ownEntry returns the number of this node's entry with a cause, a new one if there is none yet, -1 if there is no place for it.
func (r *report) ownEntry(node uint32, cause wire.Cause) int {
	for i := range r.n {
		if r.own[i] && r.hops[i].Cause == cause {
			return i
		}
	}
	return r.entry(wire.Hop{NodeID: node, Cause: cause}, true)
}

// lose adds to the lost packets of an entry.
func (r *report) lose(hop int, n uint32) {
	lost := &r.hops[hop].Lost
	*lost += min(n, math.MaxUint32-*lost)
}

// name adds a dropped PSN to an entry, if it fits the path MTU; else the report is truncated.
func (r *report) name(hop int, psn roce.PSN) bool {
	if r.room < psnOctets || r.count[hop] == wire.MaxPSNs {
		r.truncated = true
		return false
	}
	r.psns = append(r.psns, named{uint8(hop), psn})
	r.count[hop]++
	r.room -= psnOctets
	return true
}

// message appends the report to dst. number is the first one for this node's entries, list scratch memory for the PSNs.
func (r *report) message(dst []byte, number uint32, list wire.PSNList) []byte {
	x := wire.PathReport{Method: r.method, Truncated: r.truncated, Src: r.flow.Src, Dst: r.flow.Dst, Label: r.flow.Label, Hops: r.hops, HopCount: r.n}
	for i := range r.n {
		if r.own[i] && r.method == wire.MethodNodeDrops {
			x.Hops[i].Period = number
			number++
		}
		from := len(list)
		for _, p := range r.psns {
			if int(p.hop) == i {
				list = list.Append(p.psn)
			}
		}
		x.Hops[i].PSNs = list[from:len(list):len(list)]
	}
	return x.Append(dst)
}
