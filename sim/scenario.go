// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/sim/endpoint"
	"crem.dev/crem/sim/world"
)

// Scenario is one connection over one link, and what is transferred. The zero values of Back, Warmup, Outstanding, Pause and Thin are the
// usual ones. A Scenario is plain data: it can be copied, and written as JSON.
type Scenario struct {
	Link       world.Link  // from sender to receiver
	Back       *world.Link // from receiver to sender; nil: as Link
	Transport  endpoint.Config
	Protection Protection

	MessageOctets int64         // of each transfer, at least 1
	Messages      int           // transfers that count
	Warmup        int           // transfers before them that do not: CREM's handshake, and its estimate of the loss
	Outstanding   int           // transfers posted at a time; 0: 1, so that each is posted when the one before has completed
	Pause         time.Duration // between the completion of a transfer and the next post
	MTU           int           // octets of data per packet, at most 4096 with CREM
	// Pace is the bits per second, headers and framing included, at which the sender sends whatever the link does: what comes too fast fills
	// the link's queue. 0: the link holds the sender back.
	Pace int64

	Seed uint64 // of every random decision

	// Until ends the simulation at a virtual time, with whatever has completed by then; 0: after an hour.
	Until time.Duration

	// Thin is the octets of data that a packet really has between the gateways, while all else is told MTU: 0 means that the
	// simulator chooses. It saves time and memory and changes no decision (docs/design/simulator.md). MTU or more: none are saved.
	Thin int
}

// Protection is CREM at both ends of the link. Without Send there is none.
type Protection struct {
	Send    *csf.Params // PathMTU 0: large enough for every REPAIR
	Receive *crf.Params // nil: as an agent has it
	Memory  int64       // octets for the symbols of each end; 0: as much as they take
}

// CREM returns the protection that an empty CREMProfile gives, with the bounds of an agent. The caller may change the copy.
func CREM() Protection {
	return Protection{
		Send: &csf.Params{
			K: 32, MaxM: 8, Epsilon: 1e-4, Schemes: []fec.Scheme{fec.Cauchy}, MaxRepairRatio: 0.25, Spread: true, Digest: true, FixedM: -1,
			LeastBurstGap: 4 * time.Millisecond,
		},
		Receive: &crf.Params{
			Delivery: crf.InOrder, MaxHold: 50 * time.Millisecond, HoldBytes: 128 << 20, ReplayBytes: 32 << 20, MaxOpenBlocks: 4096,
			MaxK: 255, MaxM: 255, MaxT: 9216, Schemes: 1<<fec.SourceCopy | 1<<fec.Cauchy, Digest: true,
		},
	}
}

const (
	maxMTU       = 1 << 16
	maxCREMMTU   = 4096
	defaultUntil = time.Hour
)

// normal returns the scenario with defaults filled in, or what is wrong with it.
func (s Scenario) normal() (Scenario, error) {
	switch {
	case s.MessageOctets < 1 || s.Messages < 1 || s.Warmup < 0 || s.Outstanding < 0 || s.Pause < 0 || s.Until < 0 || s.Pace < 0:
		return s, errors.New("message octets and messages must be at least 1, the rest not negative")
	case s.MTU < 64 || s.MTU > maxMTU:
		return s, fmt.Errorf("MTU %d is not between 64 and %d", s.MTU, maxMTU)
	case s.Protection.Send != nil && s.MTU > maxCREMMTU:
		return s, fmt.Errorf("CREM protects RDMA MTUs up to %d, not %d", maxCREMMTU, s.MTU)
	}
	if s.Protection.Send != nil && s.Transport.Operation == endpoint.Read && s.Transport.Kind != endpoint.VeRoCE {
		return s, errors.New("the simulator has no CREM for READ responses of RoCEv2, which share PSNs with requests; write WRITE, which costs the same packets")
	}
	if s.Back == nil {
		back := s.Link
		s.Back = &back
	}
	if s.Outstanding == 0 {
		s.Outstanding = 1
	}
	if s.Until == 0 {
		s.Until = defaultUntil
	}
	return s, nil
}

// Packets is how many packets a transfer needs without loss.
func (s *Scenario) Packets() int64 { return (s.MessageOctets + int64(s.MTU) - 1) / int64(s.MTU) }

// RTT is the round-trip time of the empty links, without the time to send.
func (s *Scenario) RTT() time.Duration {
	if s.Back == nil {
		return 2 * s.Link.Delay
	}
	return s.Link.Delay + s.Back.Delay
}
