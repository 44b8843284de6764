// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"testing"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
)

// decisions is what the machines did, without what is measured in octets.
func decisions(r Result) string {
	s, c := r.CSF, r.CRF
	s.SourceOctets, s.RepairOctets, s.T, s.RDMAMTU, s.MTUHave = 0, 0, 0, 0, 0
	c.SourceOctets, c.MemoryOctets, c.T = 0, 0, 0
	return fmt.Sprintf("%v\n%+v\n%+v\n%+v\n%+v", r.Completions, r.Sender, r.Receiver, s, c)
}

// Frames that carry 960 octets instead of 4,096 change no decision of either machine, and no completion time by a nanosecond.
func TestThinFramesDecideTheSame(t *testing.T) {
	cases := map[string]struct {
		loss   float64
		octets int64
		change func(*csf.Params, *crf.Params)
	}{
		"clean":           {0, 8 * mib, nil},
		"loss":            {1e-3, 8 * mib, nil},
		"much loss":       {2e-2, 4 * mib, nil},
		"small transfers": {1e-2, 96 << 10, nil},
		"no symbols":      {1e-3, 8 * mib, func(s *csf.Params, _ *crf.Params) { s.FixedM = 0 }},
		"per message":     {1e-3, 8 * mib, func(s *csf.Params, _ *crf.Params) { s.MessageSize, s.Epsilon = 8*mib, 1e-3 }},
		"little budget":   {1e-2, 8 * mib, func(s *csf.Params, _ *crf.Params) { s.MaxRepairRatio = 0.05 }},
		"little memory":   {1e-2, 8 * mib, func(_ *csf.Params, r *crf.Params) { r.HoldBytes, r.ReplayBytes = 2*mib, mib }},
		"no spreading":    {1e-2, 8 * mib, func(s *csf.Params, _ *crf.Params) { s.Spread = false }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := Scenario{Link: wan(c.loss), Protection: CREM(), MessageOctets: c.octets, Messages: 6, MTU: 4096, Seed: 3, Until: 20 * time.Second}
			if c.change != nil {
				c.change(s.Protection.Send, s.Protection.Receive)
			}
			thin := run(t, s)
			s.Thin = s.MTU
			whole := run(t, s)
			if thin.CSF.T >= whole.CSF.T {
				t.Fatalf("T %d, %d: the frames are not thin", thin.CSF.T, whole.CSF.T)
			}
			if a, b := decisions(thin), decisions(whole); a != b {
				t.Errorf("thin:\n%s\nwhole:\n%s", a, b)
			}
			if a, b := thin.Cost, whole.Cost; a != b {
				t.Errorf("cost of thin frames %+v, of whole ones %+v", a, b)
			}
		})
	}
}
