// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"crem.dev/crem/test/lab/topology"
	"crem.dev/crem/test/lab/wan"
)

// TestSection8_2_QueueOverflowIsReported: the uplink of the sending gateway gets a queue that is too slow for the stream and drops some of it. The gateway's Path
// Reporter sees the kernel's own counters move, and its CSF takes what it says.
func TestSection8_2_QueueOverflowIsReported(t *testing.T) {
	w := newWorld(t, options{
		path: wan.Settings{Delay: wan.Duration(5 * time.Millisecond)}, profile: proactive,
		domain: fmt.Sprintf("  reporters: [%s/32, %s/32]\n  reporter: {mode: OwnDrops}\n", topology.GwA4, topology.GwB4),
	})
	if d := w.a.status().Domains[0]; d.Reporter != "OwnDrops" || d.ReporterProblem == "" {
		t.Errorf("%+v", d)
	}
	s := w.stream(streamOptions{rate: 2000, data: 1000})
	w.awaitProtecting(1)
	if n := w.a.one("csf").Counters["path_reports"]; n != 0 {
		t.Errorf("%d reports before any drop", n)
	}
	w.do(w.lab.GwA, func() error {
		link, err := netlink.LinkByName(topology.Uplink)
		if err != nil {
			return err
		}
		const octets = 1_900_000 // a second; the stream is of 2.1 million
		return netlink.QdiscAdd(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       octets, Limit: 64 << 10, Buffer: netlink.Xmittime(octets, 16<<10),
		})
	})
	w.eventually("drops are reported and believed", func() bool {
		return w.a.status().Counters["reporter_attributed"] >= 20 && w.a.one("csf").Counters["path_reports"] >= 5
	})
	if n := w.a.one("csf").Counters["path_outdated"]; n != 0 {
		t.Errorf("%d of the reports were outdated", n)
	}
	s.end()
}
