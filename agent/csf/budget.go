// SPDX-License-Identifier: Apache-2.0

package csf

import "time"

const (
	// floorSymbols may be sent in any SRTT, however little the flow sends, each reckoned at leastSymbol octets or more (Section 10, rule 1).
	// READ requests are few and small: a share of their own octets would not repair the loss of one, which costs a whole READ again.
	floorSymbols = 4
	leastSymbol  = 1024
	// nodeBurst is how long a worker may save up its share of maxRepairBandwidth, nodeFloor the least it may save up, in octets.
	nodeBurst = 10 * time.Millisecond
	nodeFloor = 64 << 10
	// quietAfter is how long after its last packet a flow still counts with its source rate.
	quietAfter = 100 * time.Millisecond
)

// symbolSize is what one symbol is reckoned at: the octets of the longest REPAIR of the flow.
func (f *Flow) symbolSize() int64 {
	if f.current == nil {
		return leastSymbol
	}
	return max(int64(f.repairSize(f.current, true)), leastSymbol)
}

// leastBudget is the octets that the flow may send as repair traffic in any SRTT, however little it sends.
func (f *Flow) leastBudget() int64 { return floorSymbols * f.symbolSize() }

// allowance is what the flow may still send as repair traffic, in octets.
type allowance struct {
	answers  int64 // as answers to requests
	ordinary int64 // as ordinary symbols, which come after what requests asked for in the last SRTT, and leave one symbol for the next request
}

// allowance applies Section 10, rule 1: repair octets of every kind in any SRTT are at most MaxRepairRatio of that SRTT's
// source octets, with a floor of four symbols. Answers that wait to be sent are taken off already. A slow flow closes blocks of few
// packets, whose ordinary symbols would take all of the floor: then no request is answered, and RDMA resends what one symbol would have saved.
func (f *Flow) allowance(now time.Duration) allowance {
	past := f.window.sum(now, f.rtt.smoothed())
	limit := max(int64(f.params.MaxRepairRatio*(1-f.warning.Withheld)*float64(past.source)), f.leastBudget())
	if f.restrained(now) {
		limit = min(limit, f.restraint.limit(past.source, f.targetOctets()))
	}
	answers := past.answers + f.waiting
	a := allowance{answers: limit - past.ordinary - answers, ordinary: limit - past.ordinary - max(answers, past.demand, f.symbolSize())}
	if past.source == 0 {
		a.ordinary = 0 // Section 10, rule 4: none for a flow that sends nothing, except answers
	}
	if f.env.Node.bounded() {
		left := f.env.Node.left(now, &f.node)
		a.answers, a.ordinary = min(a.answers, left-f.waiting), min(a.ordinary, left-f.waiting)
	}
	return a
}

// spend takes octets of a message off every budget. It is called for each message that allowance covers.
func (f *Flow) spend(now time.Duration, octets int64, answer bool) {
	s := f.window.at(now, f.rtt.smoothed())
	if answer {
		s.answers += octets
	} else {
		s.ordinary += octets
	}
	f.pacer.tokens -= float64(octets)
	f.env.Node.spend(&f.node, octets)
}

// Budget is what the flows of one worker may send together as repair traffic (Section 10, rule 2): a token bucket for all of
// them, and for each flow a bucket that fills in proportion to its source rate. It is not safe for concurrent use: each
// worker has its own, with its part of the node's bound.
type Budget struct {
	rate    float64 // octets per second, 0: no bound
	sources float64 // source octets per second of all flows
	tokens  float64
	filled  time.Duration
}

// share is one flow's part of a Budget.
type share struct {
	source float64 // octets per second that the flow is counted with in Budget.sources
	tokens float64
	filled time.Duration
	known  bool // the flow has had its first filling
}

// NewBudget returns the budget of a worker: repair octets per second, 0 for no bound.
func NewBudget(octetsPerSecond int64) *Budget {
	b := &Budget{}
	b.SetRate(octetsPerSecond)
	return b
}

// SetRate changes the bound, in octets per second, 0 for none.
func (b *Budget) SetRate(octetsPerSecond int64) {
	b.rate = float64(max(octetsPerSecond, 0))
	b.tokens = min(b.tokens, b.depth())
}

// SourceRate returns the source octets per second of all the worker's flows, by which an engine divides the node's bound
// among its workers.
func (b *Budget) SourceRate() int64 { return int64(b.sources) }

func (b *Budget) bounded() bool { return b != nil && b.rate > 0 }

func (b *Budget) depth() float64 { return max(b.rate*nodeBurst.Seconds(), nodeFloor) }

// left fills both buckets and returns the octets that the flow of s may send.
func (b *Budget) left(now time.Duration, s *share) int64 {
	b.tokens = min(b.tokens+b.rate*(now-b.filled).Seconds(), b.depth())
	b.filled = now
	part := 0.0
	if b.sources > 0 {
		part = b.rate * s.source / b.sources
	}
	if !s.known {
		s.known, s.filled, s.tokens = true, now, nodeFloor // its rate is not known yet
	}
	s.tokens = min(s.tokens+part*(now-s.filled).Seconds(), max(part*nodeBurst.Seconds(), nodeFloor))
	s.filled = now
	return int64(min(b.tokens, s.tokens))
}

// spend takes octets off the buckets of the worker and of the flow.
func (b *Budget) spend(s *share, octets int64) {
	if b.bounded() {
		b.tokens -= float64(octets)
		s.tokens -= float64(octets)
	}
}

// count replaces the source rate that a flow is counted with.
func (b *Budget) count(s *share, rate float64) {
	if b != nil {
		b.sources = max(b.sources+rate-s.source, 0)
		s.source = rate
	}
}
