// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"time"

	"crem.dev/crem/agent/internal/flowtable"
)

// SenderConfig is the limits of a marking node's CNPs.
type SenderConfig struct {
	Node      uint32
	Start     uint64        // Unix time in microseconds; the first sequence, so that it grows over restarts
	Every     time.Duration // at most one CNP a flow and level
	PerSecond float64       // CNPs in all, with a burst of a tenth of it, at least one
	Flows     int           // most flows that are remembered
}

// SenderStats is the counters of a Sender.
type SenderStats struct {
	Sent  [LevelSevere + 1]uint64 // by Level
	Drops [DropReasons]uint64     // CNPs not sent
}

// Sender makes the CNPs of a marking node, limited for each flow and in all.
type Sender struct {
	config SenderConfig
	next   uint64
	flows  *flowtable.Table[paced]
	all    bucket
	stats  SenderStats
}

// NewSender returns a sender that has sent nothing.
func NewSender(c SenderConfig) *Sender {
	return &Sender{
		config: c, next: c.Start, flows: flowtable.New[paced](c.Flows), all: bucket{perSecond: c.PerSecond, burst: max(c.PerSecond/10, 1)},
	}
}

// Stats returns the counters, alive as long as the sender.
func (s *Sender) Stats() *SenderStats { return &s.stats }

// Notify returns the CNP to send for a packet of flow that was marked with level, or why none is sent. wall is the Unix time in
// microseconds. A flow forgotten for another may be told again too early; the limit in all holds whatever the flows are.
func (s *Sender) Notify(now time.Duration, wall uint64, flow Flow, level Level) (CNP, DropReason) {
	if level != LevelEarly && level != LevelSevere || flow.Src.BitLen() == 0 || flow.Src.BitLen() != flow.Dst.BitLen() {
		return CNP{}, s.drop(DropMalformed)
	}
	f := s.flows.Get(flow)
	if f != nil && now < f.until && level <= f.level {
		return CNP{}, s.drop(DropLimit)
	}
	if !s.all.take(now) {
		return CNP{}, s.drop(DropTotal)
	}
	if f == nil {
		s.flows.MakeRoom()
		f = s.flows.Add(flow)
	}
	f.allows(now, level, s.config.Every)
	x := CNP{Level: level, Flow: flow, Node: s.config.Node, Sequence: s.next, Time: wall}
	s.next++
	s.stats.Sent[level]++
	return x, DropNone
}

func (s *Sender) drop(why DropReason) DropReason {
	s.stats.Drops[why]++
	return why
}
