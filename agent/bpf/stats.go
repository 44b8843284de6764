// SPDX-License-Identifier: Apache-2.0

package bpf

import "github.com/cilium/ebpf"

// Reason says what became of a packet in the programs. The order is that of enum reason in maps.h.
type Reason uint8

// Reasons. Those that begin with Open passed without a copy although their flow is registered, and look like losses to
// the receiver function; those that begin with Pass are RoCEv2 packets that can't be protected.
const (
	Turned           = Reason(cremReasonTURNED)            // injected frame, let through on its way up
	Redirected       = Reason(cremReasonREDIRECTED)        // injected frame, turned round
	Unregistered     = Reason(cremReasonUNREGISTERED)      // source packet of no registered flow
	PassedInOrder    = Reason(cremReasonIN_ORDER)          // copied and passed
	PassedBehind     = Reason(cremReasonBEHIND)            // copied and passed: retransmission or duplicate
	Held             = Reason(cremReasonHELD)              // copied and given up
	PassedImmediate  = Reason(cremReasonIMMEDIATE)         // copied and passed: flow without order
	OpenRingFull     = Reason(cremReasonOPEN_RING_FULL)    // no free slot
	OpenStale        = Reason(cremReasonOPEN_STALE)        // no heartbeat
	OpenBypass       = Reason(cremReasonOPEN_BYPASS)       // SetBypass
	OpenTooLong      = Reason(cremReasonOPEN_TOO_LONG)     // longer than a slot
	OpenCopyFailed   = Reason(cremReasonOPEN_COPY_FAILED)  // the kernel could not copy it
	OpenContended    = Reason(cremReasonOPEN_CONTENDED)    // others changed the flow's word every time
	PassVLAN         = Reason(cremReasonPASS_VLAN)         // behind a VLAN tag
	PassFragment     = Reason(cremReasonPASS_FRAGMENT)     // first fragment
	PassOptions      = Reason(cremReasonPASS_OPTIONS)      // IPv4 options
	PassExtension    = Reason(cremReasonPASS_EXTENSION)    // IPv6 extension headers
	PassGSO          = Reason(cremReasonPASS_GSO)          // super-packet
	PassMalformed    = Reason(cremReasonPASS_MALFORMED)    // lengths that disagree, unknown version
	BoundarySource   = Reason(cremReasonBOUNDARY_SOURCE)   // CREM message from outside the domain, dropped
	BoundaryFragment = Reason(cremReasonBOUNDARY_FRAGMENT) // fragment to the CREM port, dropped
	PathTaken        = Reason(cremReasonPATH_TAKEN)        // CREM message taken from the path
	PathPassed       = Reason(cremReasonPATH_PASSED)       // the same, left on the path: no agent
	PathDropped      = Reason(cremReasonPATH_DROPPED)      // the same, dropped: ring full

	// Reasons is their number.
	Reasons = int(cremReasonREASONS)
)

var reasonNames = [Reasons]string{
	"turned", "redirected", "unregistered", "in_order", "behind", "held", "immediate",
	"open_ring_full", "open_stale", "open_bypass", "open_too_long", "open_copy_failed", "open_contended",
	"pass_vlan", "pass_fragment", "pass_options", "pass_extension", "pass_gso", "pass_malformed",
	"boundary_source", "boundary_fragment", "path_taken", "path_passed", "path_dropped",
}

// String is the reason as a metric label.
func (r Reason) String() string {
	if int(r) < Reasons {
		return reasonNames[r]
	}
	return "unknown"
}

// Stats are totals since the maps were made, over all CPUs, indexed by Reason.
type Stats [Reasons]uint64

// Stats reads the counters. It may be called at any time.
func (o *Objects) Stats() (Stats, error) {
	var s Stats
	for i := range s {
		n, err := total(o.kernel.CremCounts, uint32(i))
		if err != nil {
			return s, explain(err, "read counter %s", Reason(i))
		}
		s[i] = n
	}
	return s, nil
}

// total adds what all CPUs counted under a key.
func total(m *ebpf.Map, key uint32) (sum uint64, err error) {
	var perCPU []uint64
	if err := m.Lookup(&key, &perCPU); err != nil {
		return 0, err
	}
	for _, n := range perCPU {
		sum += n
	}
	return sum, nil
}
