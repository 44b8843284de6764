// SPDX-License-Identifier: Apache-2.0

package crf

import "time"

// DropReason says why a message, or a packet's use for restoration, was refused. Source packets themselves are never dropped.
type DropReason uint8

// Reasons.
const (
	NotSource       DropReason = iota // a packet that is no source packet of the flow's PSN space
	BadICRC                           // a source packet whose invariant CRC is wrong (CRF 2)
	GapTooLarge                       // PSNs passed over in a jump too large to restore, or a restart of the PSNs
	FlowClosed                        // message or packet for a closed flow
	UnknownConfig                     // REPAIR for a Config ID that was not acknowledged, or is released
	WrongScheme                       // REPAIR of another scheme than its configuration's and not Source Copy
	WrongK                            // REPAIR with k above its configuration's
	WrongT                            // REPAIR with another T than its configuration's
	WrongIndex                        // Repair Index out of range
	WrongSet                          // L empty or not inside Present, or a Source Copy of an absent position
	NoDigest                          // REPAIR without the digest that was negotiated
	OtherBlock                        // k, T, Present Bitmap or digest is not that of the block's first REPAIR
	Overlap                           // the block overlaps another open one
	TooFar                            // the block lies too far ahead of the newest packet
	Stale                             // the block lies before everything that is tracked
	DuplicateSymbol                   // a symbol of this index is held already
	BadSymbol                         // a Source Copy that is no source symbol
	NoMemory                          // pool or flow bound reached
	dropReasons
)

var dropNames = [dropReasons]string{
	"not a source packet", "wrong invariant CRC", "gap too large", "flow closed", "unknown configuration", "wrong scheme", "k too large",
	"wrong symbol length", "repair index out of range", "set of sources not possible", "digest missing", "not the block's parameters",
	"blocks overlap", "block too far ahead", "block too old", "duplicate symbol", "not a source symbol", "out of memory",
}

// DropReasons is the number of reasons.
const DropReasons = int(dropReasons)

// String returns the reason in words.
func (r DropReason) String() string {
	if r < dropReasons {
		return dropNames[r]
	}
	return "unknown reason"
}

// ReleaseCause says why a held packet went on.
type ReleaseCause uint8

// Causes.
const (
	InOrderAlready ReleaseCause = iota // nothing was missing before it: it never waited
	Behind                             // a retransmission or duplicate
	Filled                             // the gap before it was filled, or known to be absent
	GaveUp                             // the gap before it was given up
	TimedOut                           // maxHold
	OutOfMemory                        // the hold memory was used up
	FailedOpen                         // the kernel program passed packets meanwhile
	Unanswered                         // nobody repairs at present: it never waited, or no longer
	Unprotected                        // no configuration, closed flow, restart, or Immediate delivery
	releaseCauses
)

var releaseNames = [releaseCauses]string{
	"in order", "behind", "gap filled", "gap given up", "hold time over", "hold memory used up", "kernel passed packets", "nobody repairs", "not protected",
}

// ReleaseCauses is the number of causes.
const ReleaseCauses = int(releaseCauses)

// String returns the cause in words.
func (c ReleaseCause) String() string {
	if c < releaseCauses {
		return releaseNames[c]
	}
	return "unknown cause"
}

// LateCause says by which part of rule CRF 1 a packet is late.
type LateCause uint8

// Causes. NotLate is no cause.
const (
	NotLate         LateCause = iota
	LateGap                   // (a) fills a gap too long after a higher PSN
	LateAfterRepair           // (b) too long after its block's first REPAIR
	LateNamed                 // (c) was named in a request
	LateBurst                 // (d) during a burst of duplicates
	LateFlagged               // the transport says that it is a retransmission
	lateCauses
)

var lateNames = [lateCauses]string{"not late", "fills an old gap", "after its block's repairs", "was requested", "burst of duplicates", "flagged as retransmission"}

// LateCauses is the number of causes, NotLate included.
const LateCauses = int(lateCauses)

// String returns the cause in words.
func (c LateCause) String() string {
	if c < lateCauses {
		return lateNames[c]
	}
	return "unknown cause"
}

// Stats are the counters and gauges of one flow. All counters are totals since the flow began.
type Stats struct {
	// Source packets.
	Sources      uint64 // arrived, of every kind
	SourceOctets uint64 // of their UDP payloads
	CEMarked     uint64
	Reordered    uint64 // first copies that filled a gap in time
	Late         [lateCauses]uint64
	Duplicates   uint64 // of a PSN that had come, or been restored, before
	Lost         uint64 // positions counted as expected and not received (Section 8.1)
	Unseen       uint64 // positions that may have passed without a copy: counted as nothing

	// Delivery.
	Held       uint64 // packets that came held
	Released   [releaseCauses]uint64
	GivenAgain uint64 // packets given from memory to a receiver whose sender went back, and lost them a second time
	Copied     uint64 // held packets that passed through memory outside the pool, because it was empty

	// Repair.
	Repairs         uint64 // REPAIRs received, of every kind
	RepairsCE       uint64
	RepairsUnneeded uint64 // for blocks that were complete
	Infos           uint64
	Blocks          uint64 // blocks that were incomplete when their first REPAIR came
	Completed       uint64 // of these, completed by restoration or late arrival
	Incomplete      uint64 // not complete at the first decoding attempt (Section 8.1)

	// Restoration.
	Decodes               uint64 // decodes whose packets were delivered
	LateDecodes           uint64 // of these, with a late copy among the known (Section 6.4, rule 4)
	LateDecodesRefused    uint64 // tried with late copies and refused; the block goes on
	Restored              uint64 // packets restored and delivered
	RestoreVerifyFailures uint64 // decodes refused as a whole (Section 6.1, rule 3)
	DigestFailures        uint64 // of these, because of the digest
	RankShort             uint64 // enough symbols, but not independent for the unknowns
	IDConstant            uint64 // Identification as predicted: the sender's constant
	IDWindow              uint64 // inside the window between the neighbours
	IDSolved              uint64 // solved, no prediction to compare with
	IDRefused             uint64 // solved, but against the prediction
	ICRCFailures          uint64 // no Identification (IPv6: nothing) makes the ICRC right

	// Requests.
	BlockRequests    uint64
	RangeRequests    uint64
	FallbackRequests uint64 // of both forms
	GivenUp          uint64 // positions given up after all rounds, or expired
	LetGo            uint64 // positions between blocks that nobody answered for
	Expired          uint64 // blocks
	GaveWay          uint64 // blocks and gaps that gave way to newer ones: block limit or memory

	// Messages.
	HelloAcks   uint64
	ParamAcks   [4]uint64 // by status
	LossReports uint64
	Restarts    uint64 // PSN restarts
	Drops       [dropReasons]uint64

	// Gauges.
	OpenBlocks   int
	Missing      int // positions waited for, in open blocks or outside
	Holding      int // packets waiting in the hold buffer
	MemoryOctets int64
	SRTT         time.Duration
	LossRate     float64 // moving average of lost over expected
	K, M, T      int     // newest configuration
}

// LateTotal returns the number of late packets of all causes.
func (s *Stats) LateTotal() uint64 {
	var n uint64
	for c := LateGap; c < lateCauses; c++ {
		n += s.Late[c]
	}
	return n
}
