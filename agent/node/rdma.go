// SPDX-License-Identifier: Apache-2.0

package node

import (
	"io/fs"
	"strconv"
	"strings"
	"time"

	"crem.dev/crem/internal/agentapi"
)

// An RDMA NIC that bypasses the kernel shows nothing to the agent. That is told when its ports have moved packets over several windows in a row, and the
// agent has seen none in all that time.
const (
	visibilityWindow  = 9 * time.Second // a little less than what is between looks
	visibilityWindows = 3
	visibilityPackets = 1000 // in a window; management traffic is less
)

// visibility compares the packets of RDMA ports with those that the agent sees.
type visibility struct {
	sys    fs.FS // /sys
	at     time.Duration
	ports  uint64
	seen   uint64
	hidden int // windows in a row
}

// look takes the agent's own count at time now and reports whether RDMA traffic passes by the agent.
func (v *visibility) look(now time.Duration, seen uint64) bool {
	if v.at != 0 && now-v.at < visibilityWindow {
		return v.hidden >= visibilityWindows
	}
	ports := v.count()
	if v.at != 0 {
		if seen == v.seen && ports >= v.ports+visibilityPackets {
			v.hidden++
		} else {
			v.hidden = 0
		}
	}
	v.at, v.ports, v.seen = now, ports, seen
	return v.hidden >= visibilityWindows
}

// count is what all RDMA ports have sent and received.
func (v *visibility) count() (total uint64) {
	for _, pattern := range []string{"class/infiniband/*/ports/*/counters/port_rcv_packets", "class/infiniband/*/ports/*/counters/port_xmit_packets"} {
		names, _ := fs.Glob(v.sys, pattern) // the pattern is good
		for _, name := range names {
			if raw, err := fs.ReadFile(v.sys, name); err == nil {
				n, _ := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64)
				total += n
			}
		}
	}
	return total
}

// seenPackets is how many RoCEv2 packets the agent has met on the uplinks.
func seenPackets(s *agentapi.Status) (n uint64) {
	n = s.Counters["tap_frames"]
	for name, x := range s.Counters {
		switch reason, kernel := strings.CutPrefix(name, "kernel_"); {
		case !kernel:
		case reason == "unregistered", reason == "in_order", reason == "behind", reason == "held", reason == "immediate", strings.HasPrefix(reason, "open_"), strings.HasPrefix(reason, "pass_"):
			n += x
		}
	}
	return n
}
