// SPDX-License-Identifier: Apache-2.0

package multipath

import (
	"errors"
	"fmt"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/endpoint"
	"crem.dev/crem/sim/rc"
)

// Config describes a queue pair. Both ends have the same one but for Local and Remote of RC.
type Config struct {
	// RC is what all transports have: the ends, MTU, window, rate, timeouts, size and number of messages. Coalesce means nothing here, Reads only to veRoCE.
	RC rc.Config
	// Operation of all messages of both ends: Write, or with veRoCE Read.
	Operation rc.Op
	// Transport is VeRoCE or MRC, Settings how it is on the wire.
	Transport roce.Transport
	Settings  *roce.Transports
	// Paths is how many UDP source ports the packets of one direction have, in turn.
	Paths int
	// RTT is the round-trip time of the empty path, which the machines are told.
	RTT time.Duration
}

// rangeUnit and mostRange are those of MRC's field for max_psn_range.
const (
	rangeUnit = 128
	mostRange = 255 * rangeUnit
)

// machine is the configuration of both machines.
func (c *Config) machine() (endpoint.Config, endpoint.Path, error) {
	m := endpoint.Config{Kind: endpoint.VeRoCE, Window: c.RC.Window, Timeout: c.RC.Timeout, Retries: c.RC.Retries, Range: c.RC.Window}
	switch {
	case c.Transport == roce.MRC && c.Settings.MRC.Enabled:
		m.Kind, m.Range = endpoint.MRC, min((c.RC.Window+rangeUnit-1)/rangeUnit*rangeUnit, mostRange)
	case c.Transport == roce.VeRoCE && c.Settings.VeRoCE.Enabled && c.Settings.VeRoCE.SACK != 0:
	default:
		return m, endpoint.Path{}, fmt.Errorf("%v is not enabled, or the opcode of its SACK is not given", c.Transport)
	}
	switch {
	case c.Operation == rc.Write:
	case c.Operation == rc.Read && c.Transport == roce.VeRoCE && c.RC.Reads > 0 && c.Settings.VeRoCE.ResponseACK != 0 && c.Settings.VeRoCE.ResponseSACK != 0:
		m.Operation, m.Reads = endpoint.Read, min(c.RC.Reads, c.RC.Depth)
	default:
		return m, endpoint.Path{}, fmt.Errorf("%v has no %v here: WRITE, or with veRoCE READ, for which it needs the opcodes of ACK and SACK of responses", c.Transport, c.Operation)
	}
	if c.Paths < 1 || c.Paths > mostPaths || c.RTT < 0 {
		return m, endpoint.Path{}, fmt.Errorf("a queue pair has 1 to %d paths, and a round-trip time that is not negative", mostPaths)
	}
	if c.RC.Window < 2 || c.RC.Window > 1<<22 || c.RC.Depth < 1 || c.RC.Depth > mostDepth || c.RC.MaxMessage < 1 || c.RC.MaxMessage > 1<<30 {
		return m, endpoint.Path{}, errors.New("a window has 2 to 2^22 packets, a queue 1 to 2^14 messages of 1 to 2^30 octets")
	}
	path := endpoint.Path{MTU: c.RC.MTU, RTT: c.RTT, Packet: time.Microsecond}
	if c.RC.Rate > 0 {
		path.Packet = max(time.Duration(int64(c.RC.MTU)*8*int64(time.Second)/c.RC.Rate), 1)
	}
	return m, path, nil
}

const (
	mostPaths = 1 << 14
	mostDepth = 1 << 14 // a quarter of the message numbers of MRC
)

// format is how the queue pair writes what its machines say.
func (c *Config) format() format {
	if c.Transport == roce.VeRoCE {
		return veroce{settings: &c.Settings.VeRoCE, mtu: c.RC.MTU, slot: c.RC.MaxMessage, read: c.Operation == rc.Read}
	}
	return mrc{slot: c.RC.MaxMessage}
}

// FrameSize returns the octets of the longest frame of the queue pair: the size for rc.NewBatch.
func (c *Config) FrameSize() int { return roce.MaxHead + c.Transport.Overhead() + c.RC.MTU }
