// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"fmt"
	"math"
	"testing"
	"time"

	"crem.dev/crem/sim"
	simulated "crem.dev/crem/sim/endpoint"
	"crem.dev/crem/sim/world"
	"crem.dev/crem/test/lab/calm"
	"crem.dev/crem/test/lab/endpoint"
	"crem.dev/crem/test/lab/wan"
)

// The path on which lab and simulator are compared (issue 5), and what runs over it.
const (
	agreeRate    = 100_000_000
	agreeRTT     = 20 * time.Millisecond
	agreeLoss    = 0.01
	agreeMTU     = 4096
	agreeMessage = 200_000
	agreeWindow  = 4 * agreeRate / 8 / 50 / (agreeMTU + 58) // four bandwidth-delay products
	agreeTimeout = 268 * time.Millisecond
	agreeTime    = 24 * time.Second
	agreeWithin  = 0.10
)

// outcome is what is compared.
type outcome struct{ goodput, sent float64 }

// inTheLab runs the transfer in network namespaces, and says what the machine did to it.
func inTheLab(t *testing.T, protected bool) (lab outcome, disturbed string) {
	c := Case{
		Path:     wan.Settings{Rate: agreeRate, Queue: 2_000_000, Delay: wan.Duration(agreeRTT / 2), Loss: agreeLoss, ProtectedOnly: true, Seed: 7},
		Transfer: endpoint.DefaultOptions(),
	}
	c.Transfer.Warmup, c.Transfer.Duration, c.Transfer.Drain = 3*time.Second, agreeTime, 20*time.Second
	c.Transfer.Size, c.Transfer.Config.Window, c.Transfer.Config.Rate = agreeMessage, agreeWindow, agreeRate
	c.Transfer.Config.Retries, c.Transfer.Config.Timeout = -1, agreeTimeout
	if protected {
		c.Profile = profile
	}
	o := transfer(t, c)
	return outcome{o.Requester.GoodputBps, o.Requester.SentOverNeeded}, o.Disturbed()
}

// inTheSimulator runs the same under virtual time, once with each of some seeds: the mean, and what two deviations of one run of the lab's length are, as the
// lab has one run.
func inTheSimulator(t *testing.T, protected bool) (mean, chance outcome) {
	const seeds = 12
	var runs [seeds]outcome
	for i := range runs {
		runs[i] = simulate(t, protected, uint64(i+1))
		mean.goodput, mean.sent = mean.goodput+runs[i].goodput/seeds, mean.sent+runs[i].sent/seeds
	}
	for _, r := range runs {
		chance.goodput += (r.goodput - mean.goodput) * (r.goodput - mean.goodput) / (seeds - 1)
		chance.sent += (r.sent - mean.sent) * (r.sent - mean.sent) / (seeds - 1)
	}
	return mean, outcome{2 * math.Sqrt(chance.goodput), 2 * math.Sqrt(chance.sent)}
}

// simulate is one run.
func simulate(t *testing.T, protected bool, seed uint64) outcome {
	t.Helper()
	const warmup = 100
	o := endpoint.DefaultOptions()
	s := sim.Scenario{
		Link:          world.Link{Rate: agreeRate, Delay: agreeRTT / 2, Loss: world.Loss{Rate: agreeLoss}},
		Transport:     simulated.Config{Window: agreeWindow, Timeout: agreeTimeout, Retries: -1},
		MessageOctets: agreeMessage, Messages: 1e6, Warmup: warmup, Outstanding: o.Config.Depth, MTU: agreeMTU, Seed: seed, Until: agreeTime + 3*time.Second,
	}
	if protected {
		s.Protection = sim.CREM()
		s.Protection.Send.Epsilon = 1e-3 // as in profile; the rest of it is the default
	}
	r, err := sim.Run(s)
	if err != nil || r.Error != "" || len(r.Completions) < warmup {
		t.Fatal(err, r.Error, len(r.Completions))
	}
	return outcome{8 * r.Goodput(), r.Cost.SentOverNeeded()}
}

// TestTheSimulatorAgrees: goodput and packets sent over needed agree within 10 %, and what chance does in a run of this length, with CREM and without.
func TestTheSimulatorAgrees(t *testing.T) {
	for name, protected := range map[string]bool{"unprotected": false, "CREM": true} {
		t.Run(name, func(t *testing.T) {
			model, chance := inTheSimulator(t, protected)
			leftOut := calm.Judge(t, func() (wrong, disturbed string) {
				lab, disturbed := inTheLab(t, protected)
				t.Logf("goodput: lab %.2f Mbit/s, simulator %.2f +- %.2f; sent over needed: lab %.3f, simulator %.3f +- %.3f",
					lab.goodput/1e6, model.goodput/1e6, chance.goodput/1e6, lab.sent, model.sent, chance.sent)
				if math.Abs(lab.goodput-model.goodput) > agreeWithin*lab.goodput+chance.goodput || math.Abs(lab.sent-model.sent) > agreeWithin*lab.sent+chance.sent {
					wrong = fmt.Sprintf("not within %g %% and what chance does", 100*agreeWithin)
				}
				return wrong, disturbed
			})
			if leftOut != "" {
				t.Skip(leftOut)
			}
		})
	}
}
