// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"time"

	"crem.dev/crem/agent/roce"
)

// A queue pair's two directions carry different destination QPNs, and nothing in a packet says which belong together. An ACK that comes
// back names a PSN that was sent a round trip ago; PSN spaces start at random 24-bit values, so after a few ACKs only one flow fits. That
// is enough to free retained blocks and to sample RTT (Section 7, Section 5.1): a wrong guess could only free a block early, which costs
// a retransmission by RDMA and never a wrong octet.

const (
	pairingWindow = 1 << 14 // PSNs behind the newest sent within which an ACK is plausible
	pairingVotes  = 4       // ACKs in a row that must fit one flow alone
	pairingIdle   = time.Minute
	pairingBound  = 8192 // remembered queue pairs a worker
)

// backKey names one direction back to a local queue pair.
type backKey struct {
	local, remote netip.Addr
	qpn           roce.QPN // destination QPN of the ACKs: the local queue pair
	transport     roce.Transport
	space         roce.Space // that they confirm
}

// of says whether the ACKs may be those of a flow between the two hosts.
func (k *backKey) of(f *sendFlow) bool {
	return f.key.Transport == k.transport && f.key.Space == k.space
}

type backFlow struct {
	key   backKey
	flow  *sendFlow // proven, or the candidate
	votes int
	last  time.Duration
}

// prove notes the proof with the flow too: its ACKs come under one name, so those of other names are not its.
func (b *backFlow) prove() { b.flow.back = b }

// disprove takes a proof back.
func (b *backFlow) disprove() {
	if b.flow != nil && b.flow.back == b {
		b.flow.back = nil
	}
	b.votes = 0
}

// pairing remembers which sending flow the ACKs to a local queue pair confirm.
type pairing struct {
	back map[backKey]*backFlow
}

func newPairing() pairing { return pairing{back: make(map[backKey]*backFlow)} }

// match returns the sending flow that an ACK with this PSN confirms, nil while that is not sure. flows are those from local to remote whose
// packets are acknowledged.
func (p *pairing) match(now time.Duration, key backKey, psn roce.PSN, flows []*sendFlow) *sendFlow {
	b := p.back[key]
	if b == nil {
		if len(p.back) >= pairingBound {
			p.expire(now)
		}
		if len(p.back) >= pairingBound {
			return nil
		}
		b = &backFlow{key: key}
		p.back[key] = b
	}
	b.last = now
	if b.flow != nil && b.flow.back == b && !b.flow.gone {
		if b.flow.sent(psn) {
			return b.flow
		}
		b.disprove() // the QP number is used again
	}
	var only *sendFlow
	for _, f := range flows {
		if !key.of(f) || !f.sent(psn) || f.back != nil {
			continue
		}
		if only != nil {
			return nil // two flows fit: no vote
		}
		only = f
	}
	switch {
	case only == nil:
		return nil
	case only != b.flow:
		b.flow, b.votes = only, 1
	default:
		b.votes++
	}
	if b.votes < pairingVotes {
		return nil
	}
	b.prove()
	return b.flow
}

// localQPN returns the local queue pair whose ACKs confirm the flow, once that is proven.
func (f *sendFlow) localQPN() (roce.QPN, bool) {
	if f.back == nil {
		return 0, false
	}
	return f.back.key.qpn, true
}

func (p *pairing) forget(f *sendFlow) {
	for k, b := range p.back {
		if b.flow == f {
			b.disprove()
			delete(p.back, k)
		}
	}
}

func (p *pairing) expire(now time.Duration) {
	for k, b := range p.back {
		if now-b.last > pairingIdle {
			b.disprove()
			delete(p.back, k)
		}
	}
}
