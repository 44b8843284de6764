// SPDX-License-Identifier: Apache-2.0

package reporter

// DropReason is why something was not used, or not reported.
type DropReason uint8

// Reasons.
const (
	DropNone        DropReason = iota
	DropMalformed              // an address family that differs, a method or number that cannot be
	DropPending                // too many reports in the making
	DropTruncated              // a dropped PSN that did not fit the report; its packet is counted all the same
	DropForwarded              // a Hop Entry of another report that did not fit: the report goes on by itself
	DropTooLong                // another report that does not fit the path MTU, nor what is gathered
	DropPaced                  // another report that would go on by itself, over the limits
	DropOwnNode                // a Hop Entry of another report with this node's number
	DropEvicted                // a report in the making of a flow that was forgotten for another
	DropUnknownFlow            // a reading of a flow that is not counted here
	DropPartial                // a reading of a period that is not counted here from its start
	DropEarly                  // a reading of a period that is not over
	DropOutdated               // a reading of a period that is not kept any more
	DropRecoloured             // a reading of a period in which packets came with another DSCP than they were sent with
	DropRepeated               // a reading of a period that was compared before, or of an earlier one
	DropIdle                   // a reading of a period in which no packet of the flow entered
	DropExcess                 // a reading of more packets than entered: clocks too far apart, or changed DSCPs
	DropUnproven               // a reading after one of those, or the first one
	DropReasons                // number of reasons
)

var dropNames = [DropReasons]string{
	"none", "malformed", "too_many_pending", "truncated", "forwarded", "too_long", "paced", "own_node", "evicted", "unknown_flow", "partial_period", "early", "outdated",
	"recoloured", "repeated", "idle", "excess", "unproven",
}

// String returns the reason as metrics name it.
func (r DropReason) String() string {
	if r >= DropReasons {
		return "unknown"
	}
	return dropNames[r]
}

// Stats is the counters of a Reporter.
type Stats struct {
	Reports      uint64 // that were made
	Dropped      uint64 // packets that the node dropped, as far as they are known one by one
	PortDropped  uint64 // packets that the port's counters say were dropped, of whatever traffic
	Attributed   uint64 // of these, packets reported as of a flow
	Merged       uint64 // Hop Entries of other reports
	Forwarded    uint64 // other reports that may go on as they are
	Measured     uint64 // periods with loss or a change of delay worth a report
	Deferred     uint64 // times that a report waited for the limit of the port
	PortRestarts uint64 // times that the port's counters began anew
	Evicted      uint64 // flows forgotten for others
	Drops        [DropReasons]uint64
}
