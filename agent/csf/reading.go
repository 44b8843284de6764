// SPDX-License-Identifier: Apache-2.0

package csf

import "crem.dev/crem/agent/roce"

// rdmaMTUs are all that the InfiniBand architecture knows.
var rdmaMTUs = [...]int{256, 512, 1024, 2048, 4096}

// reading is what READ requests tell about the RDMA MTU: a request consumes as many PSNs as its responses will be packets, so the PSN that
// follows it says how long they are. A flow that only reads shows it in no other way, and with a wrong one the receiver cannot tell a gap
// from the PSNs that a request consumed.
type reading struct {
	psn    roce.PSN           // of the newest packet
	counts [len(rdmaMTUs)]int // PSNs that it consumes at each RDMA MTU
	is     bool               // it is a READ request for more than one packet at the least of them
	mtu    int                // as the last such request showed it, 0: none did
	told   int                // how often in a row it was this one
}

// next takes the packet that follows the newest one.
func (r *reading) next(pkt *roce.Packet) {
	if r.is {
		r.learn(pkt.PSN().Sub(r.psn))
	}
	r.is = pkt.Opcode().Operation() == roce.ReadRequest && roce.Advance(pkt, rdmaMTUs[0]) > 1
	if !r.is {
		return
	}
	r.psn = pkt.PSN()
	for i, mtu := range rdmaMTUs {
		r.counts[i] = roce.Advance(pkt, mtu)
	}
}

// learn finds the one RDMA MTU at which the request consumed n PSNs.
func (r *reading) learn(n int) {
	found := 0
	for i, mtu := range rdmaMTUs {
		if r.counts[i] == n {
			if found != 0 {
				return // a short READ: several fit
			}
			found = mtu
		}
	}
	switch found {
	case 0: // something between was lost before us
	case r.mtu:
		r.told++
	default:
		r.mtu, r.told = found, 1
	}
}

// known reports whether two requests in a row showed the same: one alone may have had a lost packet behind it.
func (r *reading) known() bool { return r.told > 1 }
