// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/sim/model"
)

// Plan is the answer.
type Plan struct {
	Input Input `json:"input"`
	// Profile is ready to be applied; YAML is the same without what is the default.
	Profile v1alpha1.CREMProfile `json:"profile"`
	YAML    string               `json:"yaml"`
	// Lossless is how long a message takes without loss and without CREM, in seconds.
	Lossless float64 `json:"losslessSeconds"`
	// Mechanisms, CREM with this profile first, then what the transport does alone, then the others.
	Mechanisms []Mechanism `json:"mechanisms"`
	// Repairs is the m that this loss leads to, and Outcome what becomes of a block.
	Repairs int           `json:"repairSymbols"`
	Outcome model.Outcome `json:"block"`
	Memory  Memory        `json:"memory"`
	// Findings are what a person should know and do, the most important first.
	Findings []Finding `json:"findings"`

	chosen candidate
}

// Make makes the plan by analysis. The input must be Normal.
func Make(in Input) *Plan {
	c := in.choose()
	p := &Plan{
		Input: in, Profile: in.profile(c), Lossless: in.Lossless(), Repairs: c.crem.M,
		Outcome: c.crem.Outcome(in.path(), in.message()), Memory: in.memory(c), chosen: c,
	}
	p.YAML = yaml(&p.Profile)
	p.Mechanisms = append(p.Mechanisms, c.measure())
	beside := append(in.others(), in.protected()...)
	for _, wanted := range []bool{true, false} { // the transport's own comes second
		for _, o := range beside {
			if (o.key == in.alone()) == wanted {
				p.Mechanisms = append(p.Mechanisms, o.measure())
			}
		}
	}
	p.find()
	return p
}

// Lossless is how long a message takes without loss and without CREM, in seconds. The input must be Normal.
func (in *Input) Lossless() float64 { return in.path().Lossless(in.message()) }

// crem and alone are the mechanisms that a plan is about.
func (p *Plan) crem() *Mechanism { return &p.Mechanisms[0] }
func (p *Plan) alone() *Mechanism {
	for i := range p.Mechanisms {
		if p.Mechanisms[i].Key == p.Input.alone() {
			return &p.Mechanisms[i]
		}
	}
	return p.crem() // not reached: every transport is among the mechanisms
}

// best is the mechanism with the least p99.9; CREM if it is within 3 % of that.
func (p *Plan) best() *Mechanism {
	best := p.crem()
	for i := range p.Mechanisms {
		m := &p.Mechanisms[i]
		if m.Messages == 0 && m.P999 < best.P999 && (best.Key != keyCREM || m.P999*(1+near) < best.P999) {
			best = m
		}
	}
	return best
}
