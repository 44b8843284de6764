// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"time"

	"crem.dev/crem/agent/reporter"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/lab/raw"
	"crem.dev/crem/test/lab/wan"
)

// AnswerStep and AnswerSteps divide the time between a report and the first repair of what it names; what takes longer counts in the last step.
const (
	AnswerStep  = 50 * time.Microsecond
	AnswerSteps = 100
)

const (
	reportNode = 1
	// reportMTU is that of every path of IPv6.
	reportMTU = 1280
	// reportsPerSecond is what a port may send.
	reportsPerSecond = 10_000
	// waiting is how many reported packets are remembered until they are repaired, waits how long.
	waiting = 256
	waits   = 100 * time.Millisecond
)

// Reports is what became of the reports about one direction's losses.
type Reports struct {
	Sent   uint64 `json:"sent"`
	Losses uint64 `json:"losses"` // packets that they name
	// Answers counts reported packets by the time, in AnswerSteps, from the report's leaving until the first ordinary REPAIR of their block came by.
	Answers [AnswerSteps]uint64 `json:"answers"`
}

// pathReporter tells the CSF of the flows of a direction which of their packets it lost (Section 8.2). It stands at the head of the line: a report
// leaves at once, by the port that the packets came from.
type pathReporter struct {
	epoch   time.Time // of the bridge's clock
	of      *reporter.Reporter
	out     *raw.Sender
	back    frames.Headers // of the next report: those of the packets turned round
	acts    []reporter.Action
	pending [waiting]reported
	next    int // of pending
	stats   Reports
}

// reported is a lost packet that was reported and not repaired yet.
type reported struct {
	psn  roce.PSN
	at   time.Duration
	used bool
}

func newPathReporter(out *raw.Sender, epoch time.Time) *pathReporter {
	return &pathReporter{epoch: epoch, out: out, of: reporter.New(reporter.Config{
		Node: reportNode, Unix: time.Duration(epoch.UnixNano()), MTU: reportMTU, Flows: 1024, Pending: 256, PerSecond: reportsPerSecond,
	})}
}

// see takes a frame of the direction, which the line may have lost.
func (p *pathReporter) see(now time.Duration, frame []byte, lost bool, line *wan.Line) {
	switch class := wan.Classify(frame, line.Settings().CREMPort); {
	case class == wan.CREM:
		p.came(now, frame)
	case class == wan.RoCEData && lost:
		p.lost(now, frame, line.Full())
	}
}

// lost takes a packet that the line dropped.
func (p *pathReporter) lost(now time.Duration, frame []byte, full bool) {
	pkt, reason := roce.Parse(frame)
	if reason != roce.OK {
		return
	}
	cause := wire.CauseCorruption
	if full {
		cause = wire.CauseCongestion
	}
	copy(p.back.DstMAC[:], frame[6:12])
	copy(p.back.SrcMAC[:], frame[:6])
	key := pkt.Key()
	p.of.HandleDrop(now, reporter.Flow{Src: key.Src, Dst: key.Dst, Label: uint32(key.QPN)}, pkt.PSN(), cause)
}

// report sends what is due.
func (p *pathReporter) report(line *wan.Line) {
	now, s := time.Since(p.epoch), line.Settings()
	p.of.Poll(now, &p.acts)
	for i := range p.acts {
		h := p.back
		h.Src, h.Dst, h.SrcPort, h.DstPort, h.TOS, h.Checksum = s.ReportFrom, s.ReportTo.Addr(), s.ReportTo.Port(), s.ReportTo.Port(), 2, true
		frame := h.Frame(p.acts[i].Msg)
		p.out.Queue(frame)
		p.out.Flush()
		p.stats.Sent++
		p.expect(p.acts[i].Msg, now)
	}
	p.acts = p.acts[:0]
}

// expect remembers what a report names.
func (p *pathReporter) expect(msg []byte, now time.Duration) {
	x, err := wire.ParsePathReport(msg)
	if err != nil {
		return
	}
	for i := range x.Hops[:x.HopCount] {
		for j := range x.Hops[i].PSNs.Len() {
			p.pending[p.next] = reported{psn: x.Hops[i].PSNs.At(j), at: now, used: true}
			p.next = (p.next + 1) % waiting
			p.stats.Losses++
		}
	}
}

// came looks at a CREM message: a repair symbol that nobody asked for answers the reports about its block.
func (p *pathReporter) came(now time.Duration, frame []byte) {
	r, err := wire.ParseRepair(payload(frame))
	if err != nil || r.Retx || r.Info {
		return
	}
	for i := range p.pending {
		q := &p.pending[i]
		if n := q.psn.Sub(r.Start); !q.used || n < 0 || n >= int(r.K) {
			continue
		}
		q.used = false
		if took := now - q.at; took >= 0 && took < waits {
			p.stats.Answers[min(int(took/AnswerStep), AnswerSteps-1)]++
		}
	}
}

// payload is that of a UDP datagram without IP options or extension headers.
func payload(frame []byte) []byte {
	const udp = 8
	head := roce.EthernetLen + 20 + udp
	if len(frame) > 12 && frame[12] == 0x86 {
		head = roce.EthernetLen + 40 + udp
	}
	return frame[min(head, len(frame)):]
}
