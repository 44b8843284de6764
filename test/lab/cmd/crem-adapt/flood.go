// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"time"
)

// flood is the rival of a scenario: UDP at a steady rate that heeds nothing. Its packets are as long as the flow's: a full queue that has no room for
// those often has some for shorter ones.
type flood struct {
	to     string
	rate   int64
	length time.Duration
}

func (f *flood) run(ctx context.Context) error {
	const size, headers, discard = roceMTU, 14 + 20 + 8, "9"
	c, err := net.Dial("udp", net.JoinHostPort(f.to, discard))
	if err != nil {
		return err
	}
	defer c.Close()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	datagram := make([]byte, size)
	sent, began := int64(0), time.Now()
	for time.Since(began) < f.length {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for due := int64(time.Since(began).Seconds() * float64(f.rate) / 8); sent < due; sent += size + headers {
			_, _ = c.Write(datagram) // nobody listens there: errors of earlier datagrams say so
		}
	}
	return nil
}
