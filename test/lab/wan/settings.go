// SPDX-License-Identifier: Apache-2.0

package wan

import (
	"fmt"
	"math"
	"net/netip"
	"time"
)

// Duration is a time.Duration that is written in JSON as in Go: "10ms".
type Duration time.Duration

// MarshalText writes d as time.Duration prints it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// Settings describe one direction of the path. The zero value is a perfect wire: no limit, no delay, no loss.
type Settings struct {
	// Rate of the slowest hop in bits per second, counted on whole Ethernet frames without preamble and FCS; 0: unlimited.
	Rate int64 `json:"rate_bps"`
	// Queue bounds the octets that wait for the link, the frame in transmission included; needed with Rate.
	Queue int64 `json:"queue_octets"`
	// Delay is the one-way propagation delay, added after the link.
	Delay Duration `json:"delay"`
	// Jitter bounds the variation of Delay, both ways. It is slow, as that of queues elsewhere on the path, and never reorders.
	Jitter Duration `json:"jitter"`
	// Loss is the probability that a frame is lost independently of all others.
	Loss float64 `json:"loss"`
	// CREMLoss is the probability that a CREM message is lost besides, as if it took another path.
	CREMLoss float64 `json:"crem_loss"`
	// BurstLoss is the mean loss of a Gilbert-Elliott process and BurstLength the mean length of its runs of lost frames, at least 1.
	BurstLoss   float64 `json:"burst_loss"`
	BurstLength float64 `json:"burst_length"`
	// Reorder is the probability that a frame takes ReorderDelay longer, so that frames behind it overtake.
	Reorder      float64  `json:"reorder"`
	ReorderDelay Duration `json:"reorder_delay"`
	// Duplicate is the probability that a frame arrives twice.
	Duplicate float64 `json:"duplicate"`
	// CEProbability marks frames at random, CEThreshold (octets in the queue, 0: never) while the queue is longer. Only ECN-capable packets are marked.
	CEProbability float64 `json:"ce_probability"`
	CEThreshold   int64   `json:"ce_threshold_octets"`
	// EarlyThreshold makes the line a node of a WAN with two thresholds of the average queue (docs/wan-ecn.md): from this one on frames are marked ECT(1),
	// from CEThreshold on CE, more of them the longer the queue. 0: CEThreshold alone. CEProbability does not count then.
	EarlyThreshold int64 `json:"early_threshold_octets"`
	// ProtectedOnly spares all traffic but RoCEv2, veRoCE, MRC and CREM from loss, duplication and reordering.
	ProtectedOnly bool `json:"protected_only"`
	// CREMPort is the UDP port by which CREM messages are known; 0: none are.
	CREMPort uint16 `json:"crem_port"`
	// ReportTo is the CSF that the WAN, as a Path Reporter, tells which packets this direction lost (PATH_REPORT), and ReportFrom the address that it
	// does so from; zero: it tells nobody.
	ReportTo   netip.AddrPort `json:"report_to,omitzero"`
	ReportFrom netip.Addr     `json:"report_from,omitzero"`
	// Seed of this direction's generators.
	Seed uint64 `json:"seed"`
}

// Validate says in one sentence what cannot be emulated.
func (s *Settings) Validate() error {
	for _, p := range []struct {
		name string
		v    float64
	}{{"loss", s.Loss}, {"crem_loss", s.CREMLoss}, {"burst_loss", s.BurstLoss}, {"reorder", s.Reorder}, {"duplicate", s.Duplicate}, {"ce_probability", s.CEProbability}} {
		if math.IsNaN(p.v) || p.v < 0 || p.v > 1 {
			return fmt.Errorf("%s is a probability: %v is not between 0 and 1", p.name, p.v)
		}
	}
	switch {
	case s.Rate < 0 || s.Queue < 0 || s.CEThreshold < 0 || s.EarlyThreshold < 0:
		return fmt.Errorf("rate_bps, queue_octets, ce_threshold_octets and early_threshold_octets must not be negative")
	case s.EarlyThreshold > 0 && s.EarlyThreshold >= s.CEThreshold:
		return fmt.Errorf("ce_threshold_octets must be greater than early_threshold_octets")
	case s.Delay < 0 || s.Jitter < 0 || s.ReorderDelay < 0:
		return fmt.Errorf("delay, jitter and reorder_delay must not be negative")
	case s.Jitter > s.Delay:
		return fmt.Errorf("jitter %v is more than the delay %v that it varies", time.Duration(s.Jitter), time.Duration(s.Delay))
	case s.Rate > 0 && s.Queue == 0:
		return fmt.Errorf("a rate needs queue_octets: the queue of a line is bounded")
	case s.BurstLoss > 0 && (math.IsNaN(s.BurstLength) || s.BurstLength < 1):
		return fmt.Errorf("burst_length is the mean number of frames lost in a row: %v is less than 1", s.BurstLength)
	case s.BurstLoss > 0 && s.BurstLoss/(1-s.BurstLoss) > s.BurstLength:
		return fmt.Errorf("bursts of mean length %v cannot lose %v of all frames: each is followed by at least one that passes", s.BurstLength, s.BurstLoss)
	case s.ReportTo.IsValid() && (s.ReportTo.Addr().Is4() != s.ReportFrom.Is4() || !s.ReportFrom.IsValid()):
		return fmt.Errorf("report_to needs report_from, an address of the same IP version")
	case s.Reorder > 0 && s.ReorderDelay == 0:
		return fmt.Errorf("reorder needs reorder_delay")
	}
	return nil
}
