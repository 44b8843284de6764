// SPDX-License-Identifier: Apache-2.0

package gateway

import "crem.dev/crem/agent/roce"

// hold is the kernel's hold program for one flow of the request space (docs/design/datapath.md): it passes packets in order, and after a gap it
// leaves them to the CRF until it is handed the flow back.
type hold struct {
	on        bool // the flow is registered
	immediate bool
	learn     bool
	holding   bool
	expected  roce.PSN
	held      uint64
}

func (h *hold) register(immediate bool) { *h = hold{on: true, immediate: immediate, learn: true} }

// judge says whether the program leaves a packet to the CRF.
func (h *hold) judge(psn roce.PSN) bool {
	if !h.on || h.immediate {
		return false
	}
	ahead := psn.Sub(h.expected)
	switch {
	case h.learn:
		h.learn = false
	case ahead < 0:
		return false
	case h.holding || ahead > 0:
		h.holding = true
		h.held++
		return true
	}
	h.expected = psn.Add(1)
	return false
}

// handBack returns the flow to the program if it has held exactly what the CRF has seen.
func (h *hold) handBack(held uint64, next roce.PSN) {
	if h.holding && h.held == held {
		h.holding, h.expected = false, next
	}
}

// expect moves the expectation back to where a sender that went back has come.
func (h *hold) expect(psn roce.PSN) {
	if !h.holding && !h.learn {
		h.expected = psn
	}
}
