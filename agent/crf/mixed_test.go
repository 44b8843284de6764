// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"os"
	"testing"
)

// Mixed copies (Section 6.2). A go-back-N sender and a receiver that answers every gap with NAK, the real CSF at the sender's gateway
// and the real CRF at the receiver's, which lets packets pass as they come: so every block that loses more than its repair symbols
// sees retransmissions, each of them a packet with other octets. A decode is inconsistent if it takes such a copy for the one that was
// coded: what it restores then differs from the first copy, or is refused by a check that the rules should have made superfluous.

// mixedPath is a setting of the simulation.
type mixedPath struct {
	name  string
	loss  float64
	burst float64 // mean length of a loss
	m     int
}

var mixedPaths = []mixedPath{
	{"p=1e-3 m=1", 1e-3, 1, 1},
	{"p=1e-3 burst=3 m=2", 1e-3, 3, 2},
	{"p=5e-3 m=3", 5e-3, 1, 3},
}

// mixedMode says what guards against mixed copies.
type mixedMode struct {
	name          string
	rules, digest bool
}

var mixedModes = []mixedMode{
	{"naive", false, false}, {"rules alone", true, false}, {"digest alone", false, true}, {"both", true, true},
}

func TestSection6_2_MixedCopies(t *testing.T) {
	blocks := 4000
	switch {
	case os.Getenv("CREM_LONG") != "":
		blocks = 40000
	case testing.Short():
		blocks = 500
	}
	naive := 0
	for _, path := range mixedPaths {
		for _, mode := range mixedModes {
			s := newMixed(t, path, mode, 1)
			s.run(blocks * mixedK)
			st := &s.crf.stats
			t.Logf("%-20s %-12s %d blocks, %d inconsistent decodes tried, %d of them delivered; %d restored, %d late, %d incomplete, %d given up, %d sent for %d, %d positions withdrawn, %d late decodes refused",
				path.name, mode.name, blocks, s.tried(), s.wrong, st.Restored, st.LateTotal(), st.Incomplete, st.GivenUp, s.transmitted, s.goal, s.csf.Stats().Withdrawn, st.LateDecodesRefused)
			if s.corrupt > 0 && mode.name != "naive" {
				t.Errorf("%s, %s: %d packets with wrong data accepted", path.name, mode.name, s.corrupt)
			}
			switch mode.name {
			case "naive":
				naive += s.tried()
			case "digest alone":
				if s.wrong != 0 {
					t.Errorf("%s, %s: %d inconsistent decodes delivered", path.name, mode.name, s.wrong)
				}
			default:
				if s.tried() != 0 {
					t.Errorf("%s, %s: %d inconsistent decodes", path.name, mode.name, s.tried())
				}
			}
			if st.Restored == 0 {
				t.Errorf("%s, %s: nothing was restored", path.name, mode.name)
			}
		}
	}
	if naive == 0 {
		t.Error("the naive receiver made no inconsistent decode: the simulation shows nothing")
	}
}

// InOrder, on the same paths: the receiver sees no gap that can be restored, so the sender hardly ever goes back.
func TestSection6_1_InOrderUnderGoBackN(t *testing.T) {
	blocks := 2000
	if testing.Short() {
		blocks = 500
	}
	for _, path := range mixedPaths {
		for _, mode := range mixedModes[1:] {
			s := newMixed(t, path, mode, 2)
			s.kernel = &kernel{learn: true}
			s.run(blocks * mixedK)
			st := &s.crf.stats
			ratio := float64(s.transmitted) / float64(s.goal)
			t.Logf("%-20s %-12s %d blocks, %.4f sent over needed, %d NAKs; %d restored, %d incomplete, %d given up, %d timed out, %d held, %d late",
				path.name, mode.name, blocks, ratio, s.naks, st.Restored, st.Incomplete, st.GivenUp, st.Released[TimedOut], st.Held, st.LateTotal())
			if s.wrong != 0 || s.corrupt != 0 || mode.rules && s.tried() != 0 {
				t.Errorf("%s, %s: %d inconsistent decodes", path.name, mode.name, s.tried())
			}
			if ratio > 1.05 {
				t.Errorf("%s, %s: %.3f sent over needed", path.name, mode.name, ratio)
			}
		}
	}
}
