// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
)

// peerFlow names a flow in messages of a peer: flows are keyed by address and Flow ID.
type peerFlow struct {
	peer netip.Addr
	id   uint32
}

// sendFlow is a flow that leaves by an uplink: its CSF, or the reason why it has none.
type sendFlow struct {
	timed
	moving
	w       *worker
	key     roce.FlowKey
	uplink  int           // index of the interface by which it left when it was judged
	movedAt time.Duration // when that changed
	verdict verdict
	machine *csf.Flow // nil: not protected
	domain  string
	port    uint16
	from    netip.Addr // of our messages; zero: the node's own
	nonce   uint64     // under which HELLO_ACK names it; 0: nothing is asked
	known   peerFlow   // under which the peer's messages name it; zero before HELLO_ACK
	back    *backFlow  // under which its ACKs come; nil while that is not proven
	newest  roce.PSN   // of the newest packet sent
	upto    roce.PSN   // the last PSN that it may have consumed
	mtu     int        // RDMA MTU, from the packets of longer messages; 0 while there was none
	last    time.Duration
	packets uint64
	gone    bool
	told    uint64 // number of the last report that has it

	reaction *ecn.Reaction // to congestion in the WAN; nil: the flow's domain has no tunnels
	warned   bool          // it is in force
	limited  bool          // and the kernel holds the flow to a rate
	reactAt  time.Duration // when it is to be looked at again
}

// acknowledged says whether packets of the flow are confirmed by packets of the other direction. Responses of RoCEv2 are not.
func (f *sendFlow) acknowledged() bool {
	return f.key.Space == roce.Request || f.key.Transport != roce.RoCEv2
}

// note remembers how far the flow has come.
func (f *sendFlow) note(pkt *roce.Packet) {
	f.packets++
	if o := pkt.Opcode(); !o.Ends() {
		f.mtu = len(pkt.Data())
	}
	if psn := pkt.PSN(); f.packets == 1 || psn.After(f.newest) || f.newest.Sub(psn) > pairingWindow {
		f.newest, f.upto = psn, psn.Add(roce.Advance(pkt, max(f.mtu, leastRDMAMTU))-1)
	}
}

// leastRDMAMTU counts for a flow that has shown none. One that only reads never shows it, and its READ requests consume many PSNs: the last response
// to the newest of them must not look like the ACK of another flow.
const leastRDMAMTU = 256

// sent reports whether psn was consumed lately, so that an ACK or a response may name it.
func (f *sendFlow) sent(psn roce.PSN) bool {
	return f.packets > 0 && !psn.After(f.upto) && f.newest.Sub(psn) < pairingWindow
}

func (f *sendFlow) poll(now time.Duration) {
	if f.warned && now >= f.reactAt {
		f.w.react(f)
	}
	if f.machine == nil {
		return
	}
	f.machine.Poll(now, &f.w.csfActs)
	f.w.finishSend(f)
}

func (f *sendFlow) nextDeadline() time.Duration {
	next := roce.Never
	if f.warned {
		next = f.reactAt
	}
	if f.machine != nil {
		next = min(next, f.machine.NextDeadline())
	}
	return next
}

// recvFlow is a flow that arrives by an uplink: its CRF and its place in the kernel's table.
type recvFlow struct {
	timed
	moving
	w           *worker
	key         roce.FlowKey
	machine     *crf.Flow
	id          uint32
	nonce       uint64
	past        nonces         // an old HELLO that comes again must not end the flow
	peer        netip.AddrPort // where HELLO came from
	local       netip.Addr     // which HELLO asked, and from which we answer; not the node's own when HELLO was taken on the path
	domain      string
	profile     string
	port        uint16
	index       int // in the kernel's table
	mtu         int
	mode        packet.Mode
	digest      bool          // negotiated
	ifindex     int           // the uplink by which it arrives
	last        time.Duration // its last packet
	heard       time.Duration // the last message of its peer
	heldBefore  uint64        // packets that the kernel had held in the flow's place before the flow took it
	missed      uint64        // packets that passed without a copy, as the kernel counts them
	unseen      time.Duration // frames of the ring up to this time, and the next one, may come after such packets; 0: none
	sure        sureRanges
	holding     bool   // in the worker's list of flows to hand back
	busy        bool   // in the worker's list of flows that changed in this batch
	reportDrops bool   // the domain wants drops reported
	told        uint64 // number of the last report that has it
}

// held is how many packets that the kernel held have come out of the ring, as the kernel counts them.
func (f *recvFlow) held() uint64 { return f.heldBefore + f.machine.HeldCount() }

func (f *recvFlow) poll(now time.Duration) {
	f.machine.Poll(now, &f.w.crfActs)
	f.w.finishRecv(f)
}

// doubtful reports whether packets of the flow may have passed without a copy. The count is read when they have long passed, and the ring has
// older frames too: all up to that time are doubtful, and the first one after it, which ends the doubt.
func (f *recvFlow) doubtful() bool {
	if missed := f.w.e.holder.Missed(f.index); missed != f.missed {
		f.missed, f.unseen = missed, f.w.e.now()
	}
	return f.unseen != 0
}

// seen notes that a frame which came at that time was handled.
func (f *recvFlow) seen(at time.Duration) {
	if at > f.unseen {
		f.unseen = 0
	}
}

func (f *recvFlow) nextDeadline() time.Duration { return f.machine.NextDeadline() }

// nonces are the latest nonces under which HELLOs for one flow came.
type nonces struct {
	list [16]uint64
	n    int
}

func (n *nonces) add(nonce uint64) {
	n.list[n.n%len(n.list)] = nonce
	n.n++
}

func (n *nonces) has(nonce uint64) bool {
	for _, x := range n.list[:min(n.n, len(n.list))] {
		if x == nonce {
			return true
		}
	}
	return false
}

// sureRanges are the PSNs that responses will use, because the READ or ATOMIC requests for them were seen going the other way. The kernel
// program knows one range; contiguous ones are one range; later ones wait here.
type sureRanges struct {
	from, to roce.PSN
	waiting  [32]struct{ from, to roce.PSN }
	n        int
}

// add notes psn..psn+n-1 and reports whether the kernel's range changed.
func (s *sureRanges) add(psn roce.PSN, n int) bool {
	end := psn.Add(n)
	if s.from == s.to {
		s.from, s.to = psn, end
		return true
	}
	if s.n == 0 && psn == s.to {
		s.to = end
		return true
	}
	if s.n > 0 && psn == s.waiting[s.n-1].to {
		s.waiting[s.n-1].to = end
		return false
	}
	if s.n < len(s.waiting) {
		s.waiting[s.n].from, s.waiting[s.n].to = psn, end
		s.n++
	}
	return false
}

// passed tells that responses have reached psn, and reports whether the kernel's range changed.
func (s *sureRanges) passed(psn roce.PSN) bool {
	changed := false
	for s.from != s.to && psn.Sub(s.to.Add(-1)) >= 0 {
		s.from = s.to
		if s.n > 0 {
			s.from, s.to = s.waiting[0].from, s.waiting[0].to
			copy(s.waiting[:], s.waiting[1:s.n])
			s.n--
		}
		changed = true
	}
	return changed
}
