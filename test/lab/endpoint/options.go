// SPDX-License-Identifier: Apache-2.0

// Package endpoint runs queue pairs of sim/rc on a real interface: the RDMA host of the lab. It stands where a RoCEv2 NIC would.
package endpoint

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/rc"
)

// Options of an endpoint. Both ends of a transfer have the same, but for the role, the addresses and the times.
type Options struct {
	Requester bool // posts the messages; else the responder
	Device    string
	Local     netip.Addr
	Remote    netip.Addr
	NextHop   string // link address towards Remote; empty: from the routing and neighbour tables
	QPs       int    // connections
	Op        rc.Op  // or Mixed
	Size      int    // octets of a message
	// Config is that of every connection, without the two ends.
	Config rc.Config
	// Warmup passes before the measurement, which takes Duration; then at most Drain until what is outstanding is complete. For the requester.
	Warmup, Duration, Drain time.Duration
	// Nap is the pause between batches while there is traffic.
	Nap time.Duration
}

// Mixed posts WRITE, SEND and READ in turn.
const Mixed = rc.Op(255)

const (
	maxQPs = 256
	// Queue pair numbers: the requester's and the responder's are in different ranges, so that a capture is easily read.
	requesterQPN roce.QPN = 0x000100
	responderQPN roce.QPN = 0x000200
)

// DefaultOptions returns what a transfer without particular wishes uses.
func DefaultOptions() Options {
	return Options{
		QPs: 1, Op: rc.Write, Size: 1 << 20, Duration: 10 * time.Second, Drain: 2 * time.Second, Nap: 200 * time.Microsecond,
		Config: rc.Config{MTU: 4096, TOS: 2, Window: 1024, Timeout: 134 * time.Millisecond, Retries: 7, Depth: 16, Reads: 16, Seed: 1},
	}
}

func (o *Options) validate() error {
	switch {
	case o.Device == "":
		return errors.New("an endpoint needs an interface")
	case o.QPs < 1 || o.QPs > maxQPs:
		return fmt.Errorf("%d connections are not between 1 and %d", o.QPs, maxQPs)
	case o.Warmup < 0 || o.Duration <= 0 || o.Drain < 0:
		return errors.New("warm-up, duration and drain must not be negative")
	}
	return nil
}

// connection returns the configuration of one queue pair as the responder and the requester both derive it. What InfiniBand applications tell each
// other when they connect follows from the seed.
func (o *Options) connection(i int, local, nextHop [6]byte) rc.Config {
	c := o.Config
	c.MaxMessage = o.Size
	c.Seed += uint64(i) << 32
	asks := rc.End{QPN: requesterQPN + roce.QPN(i), PSN: roce.PSN(c.Seed*0x9e3779b1+uint64(i)*7919) & 0xffffff}
	answers := rc.End{QPN: responderQPN + roce.QPN(i), PSN: asks.PSN.Add(0x400000)}
	c.Local, c.Remote = asks, answers
	if !o.Requester {
		c.Local, c.Remote = answers, asks
	}
	c.Local.Addr, c.Local.MAC = o.Local, local
	c.Remote.Addr, c.Remote.MAC = o.Remote, nextHop
	return c
}
