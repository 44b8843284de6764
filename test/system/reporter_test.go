// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/test/frames"
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

// onPath is a world whose WAN is a reporter of the domain, with a stream whose losses are repaired on request alone.
func onPath(t *testing.T) (*world, *stream) {
	w := newWorld(t, options{
		path:    wan.Settings{Delay: wan.Duration(5 * time.Millisecond), Loss: 0.005},
		profile: `{k: 32, maxRepairSymbols: 8, epsilon: "1e-2", repairStrategy: OnDemand}`,
		domain:  fmt.Sprintf("  reporters: [%s/32]\n", topology.Reporter),
	})
	s := w.stream(streamOptions{rate: 5000})
	w.awaitProtecting(1)
	s.moves(5000)
	return w, s
}

// TestSection8_2_ANodeOfThePathReports: the WAN says which packets it lost, from one moment on. What was asked for before is then repaired unasked.
func TestSection8_2_ANodeOfThePathReports(t *testing.T) {
	w, s := onPath(t)
	before := w.a.one("csf").Counters
	if before["repairs_early"] != 0 || before["requests"] == 0 {
		t.Fatalf("without reports: %v", nonzero(before))
	}
	var settings map[string]wan.Settings
	w.askWAN(http.MethodPatch, "/v1/settings", fmt.Sprintf(`{"a_to_b":{"report_to":"%v:%d","report_from":"%v"}}`, topology.GwA4, cremPort, topology.Reporter), &settings)
	s.moves(500) // what was lost before the reports is asked for
	// A report that meets a busy machine comes too late, and round trips that rise there count as congestion, so that repairs are withheld: then the receiver asks.
	// Without any effect of the reports it would ask for every loss of every round.
	const rounds = 8
	for range rounds {
		from := w.a.one("csf").Counters
		s.moves(10_000)
		to := w.a.one("csf").Counters
		early, requests := to["repairs_early"]-from["repairs_early"], to["requests"]-from["requests"]
		t.Logf("%d losses reported so far, %d repairs for those of this round, %d requests", w.path().AToB.Reports.Losses, early, requests)
		if early >= 20 && requests <= early/2 {
			s.end()
			return
		}
	}
	t.Errorf("in none of %d rounds most reported losses were repaired before they were asked for", rounds)
	s.end()
}

// TestSection11_ForgedPathReportsAtALiveAgent: reports from outside the domain, from endpoints and from a peer change nothing but counters. A reporter of
// the domain is believed, a replay of what it said is not, and whatever it claims the repairs stay within their limit and the flow whole.
func TestSection11_ForgedPathReportsAtALiveAgent(t *testing.T) {
	const each = 200
	w, s := onPath(t)
	to, from := w.mac(w.lab.GwA, topology.Uplink), w.mac(w.lab.GwB, topology.Uplink)
	psn := func(n int) roce.PSN { return roce.PSN(0).Add(int(s.sent.Load()) - n) }
	forge := func(by netip.Addr, number uint32, lost int) []byte {
		x := wire.PathReport{Method: wire.MethodNodeDrops, Src: topology.HostA4, Dst: topology.HostB4, Label: streamQPN, HopCount: 1}
		x.Hops[0] = wire.Hop{NodeID: 77, Period: number, Lost: uint32(lost), Cause: wire.CauseCorruption}
		for i := range lost {
			x.Hops[0].PSNs = x.Hops[0].PSNs.Append(psn(i))
		}
		h := frames.Headers{SrcMAC: from, DstMAC: to, Src: by, Dst: topology.GwA4, SrcPort: cremPort, DstPort: cremPort, TOS: 2, Checksum: true}
		return h.Frame(x.Append(nil))
	}
	counters := func() map[string]uint64 { return w.a.one("csf").Counters }
	before, drops, kernel := counters(), w.a.status().Drops, w.a.status().Counters
	strangers := []netip.Addr{topology.GwB4, topology.HostB4, topology.HostA4}
	for i := range uint32(each) {
		w.emit(w.lab.WAN, topology.WANA, 1, forge(netip.MustParseAddr("203.0.113.66"), i, 20))
		w.emit(w.lab.WAN, topology.WANA, 1, forge(strangers[int(i)%len(strangers)], i, 20))
	}
	w.eventually("forged reports are dropped", func() bool {
		now := w.a.status()
		inside := now.Drops["not_a_reporter"] - drops["not_a_reporter"] + now.Counters["kernel_boundary_source"] - kernel["kernel_boundary_source"]
		return now.Counters["kernel_boundary_source"]-kernel["kernel_boundary_source"] >= each && inside >= 2*each
	})
	if now := counters(); now["path_reports"] != before["path_reports"] || now["repairs_early"] != before["repairs_early"] || now["drops_reported"] != before["drops_reported"] {
		t.Errorf("forged reports reached the sender: %s", nonzero(now))
	}

	// From a reporter: once new, then the same again and again.
	w.emit(w.lab.WAN, topology.WANA, each, forge(topology.Reporter, 1000, 1))
	w.eventually("replays are outdated", func() bool {
		now := counters()
		return now["path_reports"]-before["path_reports"] == each && now["path_outdated"]-before["path_outdated"] == each-1
	})

	// A reporter that lies: all that leaves was lost, it says.
	start := counters()
	for i := range uint32(each) {
		w.emit(w.lab.WAN, topology.WANA, 1, forge(topology.Reporter, 2000+i, wire.MaxPSNs))
		s.moves(5) // each lie is about other packets
	}
	w.eventually("lies are read", func() bool { return counters()["path_reports"]-start["path_reports"] >= each })
	end := counters()
	sources, repairs := end["source_octets"]-start["source_octets"], end["repair_octets"]-start["repair_octets"]
	t.Logf("%d repairs for lies, %d octets of repairs for %d of sources", end["repairs_early"]-start["repairs_early"], repairs, sources)
	if end["repairs_early"] == start["repairs_early"] || float64(repairs) > 0.3*float64(sources) {
		t.Errorf("%d octets of repairs for %d of sources", repairs, sources)
	}
	w.awaitProtecting(1)
	s.moves(2000)
	s.end()
}
