// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"fmt"
	"time"

	"crem.dev/crem/agent/wire"
)

// Why is what decided a flow's state or its m.
type Why uint8

// Why a flow is not protected.
const (
	WhyNoPacket     Why = iota // no source packet was seen yet
	WhyNoPeer                  // nobody to send HELLO to
	WhyMTUTooSmall             // a REPAIR does not fit the path MTU
	WhyHandshake               // HELLO is out
	WhyNoAnswer                // nobody answered HELLO or PARAM_UPDATE
	WhyConfiguring             // PARAM_UPDATE is out
	WhyRefused                 // the peer refused the configuration
	WhyNoScheme                // no scheme in common
	WhyClosedByPeer            // CLOSE of the peer
	WhyRestarted               // the queue pair number was used again
	WhyImpaired                // closed after more than a minute of impairment
	WhyClosed                  // ended

	// Why a protected flow has this m.
	WhyNoBlock    // no block was closed yet
	WhyBreaker    // the circuit breaker is open
	WhyFixed      // the profile fixes it
	WhyOnDemand   // one coded round meets the target
	WhyTarget     // the smallest m that meets the target
	WhyMaxM       // the target needs more than the bound
	WhySparse     // a slow sender, whose losses are left to requests
	WhyBudget     // the limits on repair traffic
	WhyCongestion // congestion on the repair path
	WhyRestrained // congestion on the flow's path
)

// Explanation is the present situation of a flow for an operator.
type Explanation struct {
	State            State
	Why              Why
	Status           wire.Status      // with WhyRefused
	Reason           wire.CloseReason // with WhyClosedByPeer and WhyClosed
	M, K             int
	Epsilon          float64 // for one block
	MTUNeed, MTUHave int     // with WhyMTUTooSmall

	// What m was chosen from.
	Loss           float64       // the estimate
	Seen, SeenLost float64       // packets that it rests on, and how many of them were lost
	OfSite         bool          // of all flows between the two sites; else of this flow alone
	Burst          float64       // mean length of a run of losses
	SRTT           time.Duration // round trip
	CE             float64       // share of marked packets in the last LOSS_REPORT
	Strategy       Strategy
	Model          LossModel
	MaxM           int     // bound of m
	Ratio          float64 // MaxRepairRatio
}

// Explain says why the flow has this m, or why it is not protected.
func (f *Flow) Explain() Explanation {
	s, p := f.Stats(), f.params
	estimate, ofSite := f.evidence()
	known := estimate.known()
	e := Explanation{
		State: f.state, Why: f.why, Status: f.refused.status, Reason: f.closeReason, M: s.M, K: s.K, Epsilon: f.epsilon(), MTUNeed: s.MTUNeed, MTUHave: s.MTUHave,
		Loss: s.Loss, Seen: known.sent, SeenLost: known.lost, OfSite: ofSite, Burst: s.Burst, SRTT: s.SRTT, CE: s.CE,
		Strategy: p.Strategy, Model: p.LossModel, MaxM: max(p.MaxM, p.FixedM), Ratio: p.MaxRepairRatio,
	}
	switch f.state {
	case Protecting, Suspended:
		e.Why = f.redundancy.limit
		if f.breaker.open {
			e.Why = WhyBreaker
		}
	case Configuring:
		if f.refused.status != wire.StatusAccepted {
			e.Why = WhyRefused
		}
	default:
	}
	return e
}

// String returns one line: why this m and what it was chosen from, or why not protected, and what to do about it.
func (e Explanation) String() string {
	if e.Why <= WhyNoBlock {
		return e.reason()
	}
	return e.reason() + " " + e.inputs()
}

// inputs is what m was chosen from, in one sentence.
func (e Explanation) inputs() string {
	of := "this flow"
	if e.OfSite {
		of = "the site's flows"
	}
	return fmt.Sprintf("Known: %.0f of %.0f packets of %s lost, in runs of %.1f; SRTT %v, CE %.1f %%. Profile: %s, %s, m up to %d, repairs up to %g of the flow's octets.",
		e.SeenLost, e.Seen, of, e.Burst, e.SRTT.Round(10*time.Microsecond), 100*e.CE, e.Strategy, e.Model, e.MaxM, e.Ratio)
}

// reason is one sentence: why this m, or why not protected.
func (e Explanation) reason() string {
	switch e.Why {
	case WhyNoPacket:
		return "No packet of the flow was seen yet."
	case WhyNoPeer:
		return "Not protected: the destination's site has no gateway and no address to ask; name its gateways in the domain."
	case WhyMTUTooSmall:
		return fmt.Sprintf("Not protected: a REPAIR needs an IP MTU of %d, the uplink has %d; raise the uplink's MTU or lower the RDMA MTU.", e.MTUNeed, e.MTUHave)
	case WhyHandshake:
		return "Not protected yet: HELLO was sent and waits for its answer."
	case WhyNoAnswer:
		return "Not protected: the other side does not answer; check that an agent runs there, sees this flow, and that the CREM port passes."
	case WhyConfiguring:
		return "Not protected yet: a configuration was proposed and waits for its answer."
	case WhyRefused:
		return fmt.Sprintf("Not protected: the other side refused the configuration (%s); compare k, maxRepairSymbols and schemes of both profiles.", e.Status)
	case WhyNoScheme:
		return "Not protected: the two sides have no scheme in common; add CauchyReedSolomon to the profile's schemes."
	case WhyClosedByPeer:
		return fmt.Sprintf("Not protected: the other side closed the flow (%s); it is asked again after a pause.", e.Reason)
	case WhyRestarted:
		return "Not protected yet: the queue pair number was used again, and a new handshake follows."
	case WhyImpaired:
		return "Not protected: loss was over 10 % or CE over 50 % for more than a minute; repair the path. It is tried again after a minute."
	case WhyClosed:
		return fmt.Sprintf("Ended (%s).", e.Reason)
	case WhyNoBlock:
		return "Protected; no block was closed yet."
	case WhyBreaker:
		return "m = 0: the circuit breaker is open, because loss is over 10 % or CE over 50 %; repairs start again ten seconds after that ends."
	case WhyFixed:
		return fmt.Sprintf("m = %d: the profile fixes it.", e.M)
	case WhyOnDemand:
		return fmt.Sprintf("m = 0: at a loss of %.2g repair on request meets the target of %.2g a block.", e.Loss, e.Epsilon)
	case WhyTarget:
		return fmt.Sprintf("m = %d: at a loss of %.2g it is the least that keeps blocks of %d complete within %.2g.", e.M, e.Loss, e.K, e.Epsilon)
	case WhyMaxM:
		return fmt.Sprintf("m = %d: a loss of %.2g needs more for a target of %.2g; raise maxRepairSymbols.", e.M, e.Loss, e.Epsilon)
	case WhySparse:
		return fmt.Sprintf("m = %d: the flow sends too few packets in a round trip for more within %.2g of its octets; what is lost before the end of a message is repaired on request.", e.M, e.Ratio)
	case WhyBudget:
		return fmt.Sprintf("m = %d: a loss of %.2g needs more, but repair traffic is limited to %.2g of the flow's; raise maxRepairRatio or maxRepairBandwidth.", e.M, e.Loss, e.Ratio)
	case WhyRestrained:
		return fmt.Sprintf("m = %d: the path is congested, so no more repair traffic is sent than before that.", e.M)
	case WhyCongestion:
		return fmt.Sprintf("m = %d: repair messages meet congestion, so fewer are sent.", e.M)
	}
	return "Unknown."
}
