// SPDX-License-Identifier: Apache-2.0

package bpf

// Passage says what became of a packet at a tunnel. The order is that of enum passage in wan_maps.h.
type Passage uint8

// Passages. Those that begin with Plain left outside the tunnel, as they were. Those that begin with In were dropped on arrival.
const (
	Encapsulated   = Passage(wanPassageENCAPSULATED)
	OverRate       = Passage(wanPassageOVER_RATE)         // encapsulated, and marked CE
	OverRateNotECT = Passage(wanPassageOVER_RATE_NOT_ECT) // encapsulated, can not be marked
	PlainNoLease   = Passage(wanPassagePLAIN_NO_LEASE)    // the other end has not answered lately
	PlainUplink    = Passage(wanPassagePLAIN_UPLINK)      // another uplink than that of the last request
	PlainTooBig    = Passage(wanPassagePLAIN_TOO_BIG)     // does not fit, or an earlier packet of the flow did not
	PlainRefused   = Passage(wanPassagePLAIN_REFUSED)     // the kernel would not make room
	PlainSuper     = Passage(wanPassagePLAIN_SUPER)       // a super-packet, which the device will cut
	Decapsulated   = Passage(wanPassageDECAPSULATED)
	Light          = Passage(wanPassageLIGHT)        // decapsulated, early warning consumed
	InMalformed    = Passage(wanPassageIN_MALFORMED) // lengths or fields that contradict each other
	InChecksum     = Passage(wanPassageIN_CHECKSUM)  // of the outer IPv4 header
	InFragment     = Passage(wanPassageIN_FRAGMENT)
	InForeign      = Passage(wanPassageIN_FOREIGN) // the inner packet does not belong into this tunnel
	InNotECT       = Passage(wanPassageIN_NOT_ECT) // CE, and the inner packet can not say so
	InRefused      = Passage(wanPassageIN_REFUSED) // the kernel would not take the outer header off
	MarkUntold     = Passage(wanPassageMARK_UNTOLD)
	QueueEarly     = Passage(wanPassageQUEUE_EARLY)  // encapsulated too, with the early warning: the own queue is long
	QueueSevere    = Passage(wanPassageQUEUE_SEVERE) // the same with CE
	Colourless     = Passage(wanPassageCOLOURLESS)   // not measured: its DSCP has the bit of the colour itself
	Uncounted      = Passage(wanPassageUNCOUNTED)    // not measured: no room for its flow
	Recoloured     = Passage(wanPassageRECOLOURED)   // not measured: its DSCP was changed on its way

	// Passages is their number.
	Passages = int(wanPassagePASSAGES)
)

var passageNames = [Passages]string{
	"encapsulated", "over_rate", "over_rate_not_ect", "plain_no_lease", "plain_uplink", "plain_too_big", "plain_refused", "plain_super_packet",
	"decapsulated", "light", "in_malformed", "in_checksum", "in_fragment", "in_foreign", "in_not_ect", "in_refused", "mark_untold",
	"queue_early", "queue_severe",
	"colourless", "uncounted", "recoloured",
}

// String is the passage as a metric label.
func (p Passage) String() string {
	if int(p) < Passages {
		return passageNames[p]
	}
	return "unknown"
}

// TunnelStats are totals since the maps were made, over all CPUs.
type TunnelStats struct {
	Passages [Passages]uint64
	Cells    [4][4]uint64 // packets that arrived in tunnels, by inner and outer ECN field
}

// Stats reads the counters. It may be called at any time.
func (t *Tunnels) Stats() (TunnelStats, error) {
	var s TunnelStats
	for i := range s.Passages {
		n, err := total(t.kernel.CremWanCounts, uint32(i))
		if err != nil {
			return s, explain(err, "read counter %s", Passage(i))
		}
		s.Passages[i] = n
	}
	for i := range 16 {
		n, err := total(t.kernel.CremWanCells, uint32(i))
		if err != nil {
			return s, explain(err, "read the counters of ECN fields")
		}
		s.Cells[i>>2][i&3] = n
	}
	return s, nil
}
