// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"net/netip"
	"time"

	"crem.dev/crem/agent/internal/flowtable"
)

// replayWindow is how many sequences behind the newest one a node's CNP may come.
const replayWindow = 64

// ReceiverConfig is what an ingress PE believes of CNPs.
type ReceiverConfig struct {
	Domain         func(from netip.Addr, node uint32) bool // whether the domain has this node at this address
	MaxAge         time.Duration                           // of a timestamp, in transit and by the difference of clocks
	Every          time.Duration                           // at most one CNP a flow and level is acted upon
	Early, Severe  time.Duration                           // least local queue delay that a level does not contradict
	Echo           time.Duration                           // how long after a mark of this node the CNP for it may come
	Senders, Flows int                                     // most that are remembered
}

// ReceiverStats is the counters of a Receiver.
type ReceiverStats struct {
	Accepted [LevelSevere + 1]uint64 // by Level
	Own      [LevelSevere + 1]uint64 // marks of this node acted upon, by Level
	Drops    [DropReasons]uint64
}

// Receiver takes the CNPs that come to an ingress PE (WAN ECN, Congestion Notification Packet; Security Considerations).
type Receiver struct {
	config  ReceiverConfig
	senders *flowtable.Table[sequences]
	flows   *flowtable.Table[told]
	stats   ReceiverStats
}

// sequences is which CNPs of a node were seen.
type sequences struct {
	newest uint64
	seen   uint64 // bit i: newest-i
	last   uint64 // newest of the local Unix times at which one was taken, microseconds
}

// NewReceiver returns a receiver that has seen nothing. Without Domain it believes nobody.
func NewReceiver(c ReceiverConfig) *Receiver {
	return &Receiver{config: c, senders: flowtable.New[sequences](c.Senders), flows: flowtable.New[told](c.Flows)}
}

// Stats returns the counters, alive as long as the receiver.
func (r *Receiver) Stats() *ReceiverStats { return &r.stats }

// Observation is what the ingress itself sees of the flow's path: the largest queue delay of the last round trip, by RTT samples or path
// reports. A smaller span would contradict a true CNP about a queue that the samples have not passed yet.
type Observation struct {
	Known bool
	Delay time.Duration
}

// Handle takes a datagram from an address. wall is the Unix time in microseconds. It returns the CNP if it is to be acted upon, else why
// not.
func (r *Receiver) Handle(now time.Duration, wall uint64, from netip.Addr, b []byte, local func(Flow) Observation) (CNP, DropReason) {
	x, err := ParseCNP(b)
	if err != nil {
		return CNP{}, r.drop(DropMalformed)
	}
	if r.config.Domain == nil || !r.config.Domain(from, x.Node) {
		return CNP{}, r.drop(DropForeign)
	}
	if why := r.fresh(wall, from, &x); why != DropNone {
		return CNP{}, r.drop(why)
	}
	if local != nil && r.contradicts(x.Level, local(x.Flow)) {
		return CNP{}, r.drop(DropContradict)
	}
	f := r.told(x.Flow)
	if f.echo(now, x.Level) {
		return CNP{}, r.drop(DropEcho)
	}
	if !f.allows(now, x.Level, r.config.Every) {
		return CNP{}, r.drop(DropLimit)
	}
	r.stats.Accepted[x.Level]++
	return x, DropNone
}

// Own takes a mark that this node itself, as marking node, gave a packet of the flow, within the limits of CNPs. The egress meets the mark too and
// tells of it: one CNP of this level is its echo, and not acted upon again.
func (r *Receiver) Own(now time.Duration, flow Flow, level Level) DropReason {
	f := r.told(flow)
	if !f.allows(now, level, r.config.Every) {
		return r.drop(DropLimit)
	}
	f.echoes[level] = now + r.config.Echo
	r.stats.Own[level]++
	return DropNone
}

// told is what was told of a flow lately.
type told struct {
	paced
	echoes [LevelSevere + 1]time.Duration // until when a CNP of each level is an echo
}

// echo reports whether a CNP is one, and that it has come.
func (t *told) echo(now time.Duration, level Level) bool {
	is := now < t.echoes[level]
	t.echoes[level] = 0
	return is
}

// fresh checks timestamp and sequence, and remembers the sequence. A sequence of the future would shut its node out for as long as it is
// ahead: nodes start at their Unix time and send less than one CNP a microsecond, so none of theirs is.
func (r *Receiver) fresh(wall uint64, from netip.Addr, x *CNP) DropReason {
	age := uint64(r.config.MaxAge.Microseconds())
	switch {
	case x.Time > wall && x.Time-wall > age || x.Sequence > wall && x.Sequence-wall > age:
		return DropFuture
	case x.Time < wall && wall-x.Time > age:
		return DropOld
	}
	key := Flow{Src: from, Label: x.Node}
	s := r.senders.Get(key)
	if s == nil {
		if s = r.addSender(wall, key); s == nil {
			return DropTable
		}
	}
	if !s.take(x.Sequence) {
		return DropReplayed
	}
	s.last = max(s.last, wall)
	return DropNone
}

// take reports whether a sequence is new, and remembers it.
func (s *sequences) take(n uint64) bool {
	if n > s.newest {
		s.seen <<= n - s.newest
		s.newest = n
	}
	behind := s.newest - n
	if behind >= replayWindow || s.seen>>behind&1 != 0 {
		return false
	}
	s.seen |= 1 << behind
	return true
}

// addSender makes room for a node by forgetting the one not heard for longest, if a replay of what it sent is too old by now: a timestamp
// may have been ahead by MaxAge when it was taken. It returns nil if there is none.
func (r *Receiver) addSender(wall uint64, key Flow) *sequences {
	if r.senders.Full() {
		oldest, s := r.senders.Oldest()
		if wall < s.last || wall-s.last <= 2*uint64(r.config.MaxAge.Microseconds()) {
			return nil
		}
		r.senders.Delete(oldest)
	}
	return r.senders.Add(key)
}

// contradicts applies the SHOULD of the draft: CNPs that are not consistent with what is seen of the queue are discarded.
func (r *Receiver) contradicts(level Level, o Observation) bool {
	if !o.Known {
		return false
	}
	if level == LevelSevere {
		return o.Delay < r.config.Severe
	}
	return o.Delay < r.config.Early
}

func (r *Receiver) told(flow Flow) *told {
	if p := r.flows.Get(flow); p != nil {
		return p
	}
	r.flows.MakeRoom()
	return r.flows.Add(flow)
}

func (r *Receiver) drop(why DropReason) DropReason {
	r.stats.Drops[why]++
	return why
}
