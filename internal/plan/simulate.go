// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"time"

	"crem.dev/crem/agent/csf"
	"crem.dev/crem/internal/render"
	"crem.dev/crem/sim"
	"crem.dev/crem/sim/endpoint"
	"crem.dev/crem/sim/world"
)

const (
	// simulatedPackets is how many packets a simulation may take when the caller does not say how many messages: some seconds.
	simulatedPackets = 1 << 20
	mostMessages     = 1000
	leastMessages    = 5
	warmup           = 3 // messages in which CREM gets to know the path
	portion          = 1 << 16
	seed             = 1
)

// Simulator runs CREM with the plan's profile: the real machines of both gateways under virtual time.
type Simulator struct {
	plan *Plan
	run  *sim.Simulation
}

// Messages is how many messages a simulation of usual length has; 0 when so few fit that they would tell nothing.
func (p *Plan) Messages() int {
	n := int(simulatedPackets/p.Input.message().Packets()) - warmup
	if n < leastMessages {
		return 0
	}
	return min(n, mostMessages)
}

// Simulate begins to simulate so many messages.
func (p *Plan) Simulate(messages int) (*Simulator, error) {
	run, err := sim.New(p.scenario(messages))
	if err != nil {
		return nil, fmt.Errorf("simulate CREM: %w", err)
	}
	return &Simulator{p, run}, nil
}

// scenario is one flow with its part of the link.
func (p *Plan) scenario(messages int) sim.Scenario {
	in, spec := &p.Input, &p.Profile.Spec
	protection := sim.CREM()
	protection.Send.K, protection.Send.MaxM = int(spec.K), int(spec.MaxRepairSymbols)
	protection.Send.Epsilon = p.chosen.target.epsilon
	if p.chosen.target.message {
		protection.Send.MessageSize = in.Message
	}
	protection.Send.MaxRepairRatio, _ = render.Decimal(spec.MaxRepairRatio) // the plan wrote it
	protection.Send.Spread = p.chosen.spread
	protection.Receive.Delivery, protection.Receive.MaxHold = in.delivery(), spec.MaxHold.Duration
	protection.Receive.HoldBytes, protection.Receive.ReplayBytes = in.hold(spec.MaxHold.Duration)
	if p.chosen.onDemand {
		protection.Send.Strategy = csf.OnDemand
	}
	if in.Burst > 1 {
		protection.Send.LossModel = csf.Empirical
	}
	link := world.Link{Rate: int64(in.rate()), Delay: in.RTT / 2, Framing: framing + in.Tunnel, Loss: world.Loss{Rate: in.Loss, Burst: in.Burst}}
	back := link
	if in.LosslessBack {
		back.Loss = world.Loss{}
	}
	return sim.Scenario{
		Link: link, Back: &back, Transport: p.endpoint(),
		Protection: protection, MessageOctets: in.Message, Messages: messages, Warmup: warmup, MTU: in.RDMAMTU, Seed: seed,
	}
}

// endpoint is the transport as the simulator has it.
func (p *Plan) endpoint() endpoint.Config {
	c := endpoint.Config{Timeout: time.Duration(p.chosen.timeout * float64(time.Second)), Retries: -1}
	switch p.Input.Transport {
	case SelectiveRepeat:
		return endpoint.Config{Kind: endpoint.SelectiveRepeat, NACK: true}
	case SelectiveRepeatTime:
		return endpoint.Config{Kind: endpoint.SelectiveRepeat}
	case MRC:
		c.Kind = endpoint.MRC
	case VeRoCE:
		c.Kind = endpoint.VeRoCE
	case GoBackN:
	}
	return c
}

// Step goes on for a moment; it is false when nothing is left to do. At any time Finish takes what there is.
func (s *Simulator) Step() bool { return s.run.Step(portion) }

// Progress is how many messages are done, and how many there are.
func (s *Simulator) Progress() (done, all int) { return s.run.Completed() }

// Finish puts what has been simulated so far into the plan, as a mechanism beside that by analysis; nothing where nothing has completed.
func (s *Simulator) Finish() {
	r := s.run.Result()
	n := len(r.Completions)
	if n == 0 {
		return
	}
	m := Mechanism{
		Key: keySimulated, Name: mechanismNames[keySimulated], Overhead: r.Cost.RepairRatio(), Messages: n,
		Mean: r.Mean().Seconds(), P50: r.Quantile(0.5).Seconds(), P99: r.Quantile(0.99).Seconds(),
	}
	if n >= mostMessages {
		m.P999 = r.Quantile(0.999).Seconds()
	}
	p := s.plan
	p.Mechanisms = append(p.Mechanisms[:1:1], append([]Mechanism{m}, p.Mechanisms[1:]...)...)
	p.findAgreement(&m, &r)
}

// agree is within what the means of analysis and simulation count as the same.
const agree = 0.05

// findAgreement compares the simulation with the analysis.
func (p *Plan) findAgreement(m *Mechanism, r *sim.Result) {
	off := m.Mean/p.crem().Mean - 1
	switch {
	case !r.Done:
		p.say(Note, "simulation", "The simulation was ended after %d of the messages: its numbers are of these alone.", m.Messages)
	case off > agree || off < -agree:
		p.say(Note, "simulation", "The mean of %d messages through the real machines is %+.0f %% off the analysis, with %d local ACK timeouts and %d losses left to RDMA: what the analysis leaves out matters here.",
			m.Messages, 100*off, r.Cost.Timeouts, r.CRF.GivenUp)
	default:
		p.say(Fine, "simulation", "%d messages through the real machines agree with the analysis: the mean is %+.1f %% off, and %s of repair symbols were sent.", m.Messages, 100*off, percent(m.Overhead))
	}
}
