// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"crem.dev/crem/agent/roce"
)

// End is one end of the connection. What RDMA applications exchange out of band is simply known to both.
type End struct {
	Addr netip.Addr
	MAC  [6]byte // of the interface; of the remote end: of the next hop towards it
	QPN  roce.QPN
	PSN  roce.PSN // of the first request that this end sends
}

// Config describes a queue pair. Both ends have the same one but for Local and Remote: see Reverse.
type Config struct {
	Local, Remote End
	// MTU is the RoCE path MTU in octets of payload: 256, 512, 1024, 2048 or 4096.
	MTU int
	// TOS is the IPv4 TOS octet or IPv6 traffic class of all packets: DSCP and ECN.
	TOS uint8
	// Window bounds the PSNs in flight (requests sent and not acknowledged). A READ may exceed it by its own length.
	Window int
	// Rate paces what carries data, in bits per second of Ethernet frames; 0: no pacing.
	Rate int64
	// Timeout is the local ACK timeout, Retries how often in a row the requester tries again without progress (retry_cnt); below 0: for ever.
	Timeout time.Duration
	Retries int
	// Depth bounds the messages outstanding (send queue), Reads the READs among them (initiator depth).
	Depth, Reads int
	// MaxMessage is the size of the largest message in octets. Memory of Depth such messages is registered at each end that receives data.
	MaxMessage int
	// Coalesce lets one ACK answer all packets of a batch, as hardware does; Soft-RoCE answers each that asks.
	Coalesce bool
	// Seed of the payload, equal at both ends.
	Seed uint64
}

// Reverse returns the configuration of the other end.
func (c Config) Reverse() Config {
	c.Local, c.Remote = c.Remote, c.Local
	return c
}

// FrameSize returns the octets of the longest frame of the queue pair, Ethernet header included: the size for NewBatch.
func (c *Config) FrameSize() int { return roce.MaxHead + bthLen + rethLen + c.MTU + icrcLen }

func (c *Config) validate() error {
	switch {
	case c.MTU < 256 || c.MTU > 4096 || c.MTU&(c.MTU-1) != 0:
		return fmt.Errorf("RoCE MTU %d is none of 256, 512, 1024, 2048, 4096", c.MTU)
	case !c.Local.Addr.IsValid() || !c.Remote.Addr.IsValid() || c.Local.Addr.Unmap().Is4() != c.Remote.Addr.Unmap().Is4():
		return errors.New("both ends need an address of the same IP version")
	case c.Local.QPN.Management() || c.Remote.QPN.Management():
		return errors.New("queue pairs 0 and 1 are for management")
	case c.Window < 2 || c.Window > 1<<22:
		return fmt.Errorf("window %d is not between 2 and 2^22 packets", c.Window)
	case c.Rate < 0 || c.Timeout <= 0 || c.Depth < 1 || c.Reads < 1 || c.MaxMessage < 1:
		return errors.New("rate, timeout, depth, reads and message size must be positive")
	case c.MaxMessage > 1<<22*256:
		return errors.New("a message may not have more than 2^30 octets")
	}
	return nil
}

// sourcePort is the UDP source port, the same in both directions, chosen as Soft-RoCE does.
func (c *Config) sourcePort() uint16 {
	return uint16(0xc000 | (uint64(c.Local.QPN)*uint64(c.Remote.QPN))&0x3fff)
}
