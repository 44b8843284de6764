// SPDX-License-Identifier: Apache-2.0

package csf

// Stats is the counters and gauges of a flow.
type Stats struct{}

// Explanation is the present situation of a flow for an operator.
type Explanation struct{}

// String returns one sentence: why this m, or why not protected, and what to do about it.
func (e Explanation) String() string { return "" }

// Budget is what the flows of one worker may send together as repair traffic (Section 10, rule 2).
type Budget struct{}

// NewBudget returns the budget of a worker: repair octets per second, 0 for no bound.
func NewBudget(octetsPerSecond int64) *Budget { return &Budget{} }

// SetRate changes the bound.
func (b *Budget) SetRate(octetsPerSecond int64) {}

// SourceRate returns the source octets per second of all the worker's flows, by which an engine divides the node's bound
// among its workers.
func (b *Budget) SourceRate() int64 { return 0 }
