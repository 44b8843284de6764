// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"crem.dev/crem/test/rxe/audit"
)

// result is one object of the JSON file.
type result struct {
	Test      string  `json:"test"`
	IP        int     `json:"ip"`
	MTU       int     `json:"mtu"`
	Loss      float64 `json:"loss"`
	RTT       float64 `json:"rtt_ms"`
	Protected bool    `json:"protected"`

	// SentOverNeeded: data packets that left the sending guest, counted at its gateway's TAP, over the packets that the messages are.
	SentOverNeeded float64 `json:"sent_over_needed"`
	Sent           uint64  `json:"sent"`
	Needed         uint64  `json:"needed"`
	Retransmitted  uint64  `json:"retransmitted"` // packets whose PSN their guest had passed before: data, READ and ATOMIC requests
	Naks           uint64  `json:"naks"`          // NAKs that left a guest
	Errors         int     `json:"errors"`        // 1: perftest or rping failed at either end, or ran into its time limit
	Restored       uint64  `json:"restored"`      // packets restored by both agents
	// Corrupt: packets given to a guest that were not, octet for octet and with a right invariant CRC, what the other guest had sent with that PSN; for
	// rping one more if it found wrong data in memory.
	Corrupt uint64 `json:"corrupt"`

	Seconds       float64           `json:"seconds"`        // of the client, its start included
	Lost          uint64            `json:"lost"`           // RoCEv2 and CREM packets that the line lost
	Gaps          uint64            `json:"gaps"`           // packets given to a guest although the one in front was missing
	RepairPackets uint64            `json:"repair_packets"` // CREM packets on the line, both directions
	RepairRatio   float64           `json:"repair_ratio"`   // octets of CREM over octets of RoCEv2 on the line
	Missed        uint64            `json:"audit_missed"`   // frames that the audit did not see; 0 or the counts are doubtful
	HostDropped   uint64            `json:"host_dropped"`   // frames that the emulator's host dropped besides: the same
	Audit         audit.Report      `json:"audit"`
	Hardware      [2]map[string]int `json:"hw_counters"` // of client and server guest, what changed
	Agents        map[string]uint64 `json:"agents,omitempty"`
	Why           string            `json:"why,omitempty"` // of errors
}

const header = "test         ip  mtu  loss  CREM  sent/needed  retrans    NAKs  restored  corrupt  errors   time"

func (r *result) row() string {
	crem := "no"
	if r.Protected {
		crem = "yes"
	}
	s := fmt.Sprintf("%-11s  %2d %4d  %3.0f %%  %-4s  %11.3f  %7d  %6d  %8d  %7d  %6d  %3.0f s",
		r.Test, r.IP, r.MTU, r.Loss*100, crem, r.SentOverNeeded, r.Retransmitted, r.Naks, r.Restored, r.Corrupt, r.Errors, r.Seconds)
	if r.Why != "" {
		s += "  " + r.Why
	}
	return s
}

// bound is the most that sent over needed may be with CREM.
func bound(loss float64) float64 {
	switch {
	case loss == 0:
		return 1.01
	case loss <= 0.01:
		return 1.03
	}
	return 1.10
}

// judge names every figure that was missed. Soft-RoCE alone may fail under loss: the unprotected runs must only show that the line loses packets, and
// that nothing but what was sent arrives.
func judge(results []result) (missed []string) {
	for i := range results {
		r := &results[i]
		miss := func(format string, args ...any) {
			missed = append(missed, fmt.Sprintf("%s ipv%d MTU %d loss %g %%, protected %t: ", r.Test, r.IP, r.MTU, r.Loss*100, r.Protected)+fmt.Sprintf(format, args...))
		}
		if r.Corrupt > 0 {
			miss("%d packets or messages were not what had been sent", r.Corrupt)
		}
		if r.Loss > 0 && r.Lost == 0 {
			miss("the line lost nothing, so the run shows nothing")
		}
		if r.Missed+r.HostDropped > 0 {
			miss("the host dropped %d frames before the audit and %d on the line", r.Missed, r.HostDropped)
		}
		if !r.Protected {
			continue
		}
		if r.Errors > 0 {
			miss("failed: %s", r.Why)
		}
		if r.Loss > 0 && r.Restored == 0 {
			miss("nothing was restored")
		}
		if b := bound(r.Loss); !strings.HasPrefix(r.Test, "rping") && r.SentOverNeeded > b {
			miss("%.3f packets sent for each one needed, the bound is %.2f", r.SentOverNeeded, b)
		}
	}
	return missed
}
