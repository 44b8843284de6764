// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"time"

	"crem.dev/crem/agent/fec"
)

// DropReason is why the machine did not use a packet or a message, or did not send a symbol.
type DropReason uint8

// Reasons.
const (
	DropNotSource      DropReason = iota // the packet is not of this flow, or no source packet
	DropInvalidSource                    // a source packet that no receiver would accept restored
	DropRetransmission                   // the first that was seen of its PSN says that it is a retransmission
	DropTooLong                          // longer than the symbols of its block
	DropNoMemory                         // the pool is used up
	DropClosed                           // the flow has ended
	DropNotBound                         // a message while there is no peer
	DropWrongPeer                        // a message from another address than the peer's
	DropWrongFlow                        // a message with another Flow ID
	DropStaleAck                         // HELLO_ACK or PARAM_ACK that nothing waits for
	DropDuplicate                        // HELLO_ACK that repeats the one that bound
	DropAlreadyBound                     // HELLO_ACK of a second peer; answered by CLOSE
	DropMalformed                        // a message whose fields contradict the protocol or what it names
	DropNotHeld                          // request for a block that is not, or no longer, held
	DropMismatch                         // request with another k or Config ID than the block's
	DropRepeated                         // request with a Request ID that was answered
	DropTooSoon                          // second request for a block within one SRTT
	DropStaleRTT                         // RDMA acknowledgement of a PSN that is not outstanding
	DropBudget                           // symbols withheld by the limits on repair traffic
	DropBreaker                          // symbols withheld by the open circuit breaker
	DropInconsistent                     // symbols withheld because a packet came again with other octets
	DropTrimmed                          // the network cut its data off before it came here
	DropReasons                          // number of reasons
)

var dropNames = [DropReasons]string{
	"not_source", "invalid_source", "retransmission", "too_long", "no_memory", "closed", "not_bound", "wrong_peer", "wrong_flow", "stale_ack", "duplicate_ack",
	"already_bound", "malformed", "not_held", "mismatch", "repeated_request", "request_too_soon", "stale_rdma_ack", "budget", "breaker",
	"inconsistent", "trimmed",
}

// String returns the reason as metrics name it.
func (r DropReason) String() string {
	if r >= DropReasons {
		return "unknown"
	}
	return dropNames[r]
}

// Stats is the counters and gauges of a flow. Octets are of UDP payloads.
type Stats struct {
	SourcePackets, SourceOctets uint64 // packets that carried a new PSN
	Retransmitted               uint64 // packets whose PSN was not new
	Reordered                   uint64 // of these, packets that filled an empty position
	Differing                   uint64 // of these, copies that differ from the first of an open or retained block
	Withdrawn                   uint64 // positions withdrawn because of them

	Ordinary, Coded, Copies, Info uint64 // REPAIRs by kind
	Early                         uint64 // additional ordinary ones, for packets reported dropped
	RepairOctets                  uint64 // of all REPAIRs with a symbol
	Withheld                      uint64 // symbols that were wanted and not sent; Drops says why

	Requests, RequestsAnswered uint64 // REPAIR_REQUESTs; blocks answered

	BlocksClosed                              [closeCauses]uint64 // by CloseCause
	BlocksAcked, BlocksExpired, BlocksEvicted uint64              // retained blocks by what freed them

	Hellos, ParamUpdates, Closes uint64 // messages sent
	Probes                       uint64 // PARAM_UPDATEs that were sent again only to be timed
	Refused                      uint64 // PARAM_ACKs with another Status than accepted
	ClosedByPeer                 uint64
	PeerSilent                   uint64 // times that the peer was silent for so long that it was asked anew
	Restarts                     uint64 // PSN restarts

	LossReports, PathReports, PathOutdated          uint64
	DropsReported, DropsUnused                      uint64 // PSNs that PATH_REPORTs name; of these, those that changed nothing
	Expected, Lost, Restored, Incomplete, Congested uint64 // from LOSS_REPORTs; Congested: intervals
	RTTSamples                                      uint64
	BreakerOpened                                   uint64
	Drops                                           [DropReasons]uint64

	// Gauges, up to date when Flow.Stats returns.
	Scheme           fec.Scheme
	K, T             int // configuration in force, 0: none
	M                int // ordinary symbols of the last block
	Loss             float64
	Burst            float64 // mean length of a run of losses
	CE               float64 // share of source packets with a CE mark in the last LOSS_REPORT
	SRTT, SRTTMin    time.Duration
	BreakerOpen      bool
	RepairShare      float64 // share of the ordinary symbols that congestion on the repair path leaves
	Retained         int     // blocks kept for requests
	Digest           bool
	RDMAMTU          int // known or guessed
	MTUNeed, MTUHave int // MTUNeed not 0: a REPAIR needs that many octets of IP MTU, the path has MTUHave
}

// Each calls yield for every counter but Drops, which DropReason names.
func (s *Stats) Each(yield func(name string, value uint64)) {
	for _, c := range [...]struct {
		name  string
		value uint64
	}{
		{"source_packets", s.SourcePackets}, {"source_octets", s.SourceOctets}, {"retransmitted", s.Retransmitted}, {"reordered", s.Reordered},
		{"differing", s.Differing}, {"withdrawn", s.Withdrawn}, {"repairs_ordinary", s.Ordinary}, {"repairs_coded", s.Coded},
		{"repairs_copies", s.Copies}, {"repairs_info", s.Info}, {"repairs_early", s.Early}, {"repair_octets", s.RepairOctets}, {"withheld", s.Withheld},
		{"requests", s.Requests}, {"requests_answered", s.RequestsAnswered}, {"blocks_acked", s.BlocksAcked},
		{"blocks_expired", s.BlocksExpired}, {"blocks_evicted", s.BlocksEvicted}, {"hellos", s.Hellos}, {"param_updates", s.ParamUpdates}, {"rtt_probes", s.Probes},
		{"closes", s.Closes}, {"refused", s.Refused}, {"closed_by_peer", s.ClosedByPeer}, {"peer_silent", s.PeerSilent}, {"restarts", s.Restarts},
		{"loss_reports", s.LossReports}, {"path_reports", s.PathReports}, {"path_outdated", s.PathOutdated}, {"drops_reported", s.DropsReported}, {"drops_unused", s.DropsUnused}, {"expected", s.Expected}, {"lost", s.Lost}, {"restored", s.Restored},
		{"incomplete", s.Incomplete}, {"congested_intervals", s.Congested}, {"rtt_samples", s.RTTSamples}, {"breaker_opened", s.BreakerOpened},
	} {
		yield(c.name, c.value)
	}
	for i, v := range s.BlocksClosed {
		yield("blocks_closed_by_"+CloseCause(i).String(), v)
	}
}

func (f *Flow) drop(why DropReason) { f.stats.Drops[why]++ }

// Stats returns the flow's counters and gauges, alive as long as the flow; gauges are those of this call.
func (f *Flow) Stats() *Stats {
	s := &f.stats
	s.K, s.T, s.Scheme = 0, 0, 0
	if c := f.current; c != nil {
		s.K, s.T, s.Scheme = c.k, c.T, c.scheme
	}
	e, _ := f.evidence()
	s.Loss, s.Burst = e.p(), e.runLength()
	s.SRTT, s.SRTTMin = f.rtt.smoothed(), f.rtt.min()
	s.BreakerOpen, s.RepairShare = f.breaker.open, f.repairPath.share
	s.Retained, s.Digest, s.RDMAMTU = f.retained.len(), f.digest, f.announcedMTU()
	return s
}
