// SPDX-License-Identifier: Apache-2.0

// Package endpoint runs queue pairs of sim/rc, or of sim/multipath, on a real interface: the RDMA host of the lab. It stands where a NIC would.
package endpoint

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/rc"
)

// Options of an endpoint. Both ends of a transfer have the same, but for the role, the addresses and the times.
type Options struct {
	Requester   bool // posts the messages; else the responder
	Device      string
	Local       netip.Addr
	Remote      netip.Addr
	NextHop     string // link address towards Remote; empty: from the routing and neighbour tables
	Connections int    // connections
	Op          rc.Op  // or Mixed
	Size        int    // octets of a message
	// Transport of all connections. Those of MRC write only, those of veRoCE write or read.
	Transport roce.Transport
	// Multipath is what only they have.
	Multipath Multipath
	// Config is that of every connection, without the two ends.
	Config rc.Config
	// Warmup passes before the measurement, which takes Duration; then at most Drain until what is outstanding is complete. For the requester.
	Warmup, Duration, Drain time.Duration
	// Nap is the pause between batches while there is traffic.
	Nap time.Duration
}

// Multipath is how connections of veRoCE and MRC are on the wire. What is not settled in public is chosen here.
type Multipath struct {
	Port              uint16 // UDP, of veRoCE
	SACK              uint8  // opcode, of veRoCE; these two are of acknowledgements of READ responses
	ResponseACK       uint8
	ResponseSACK      uint8
	RetransmissionBit int           // of BTH octet 8, below 0: none
	Paths             int           // UDP source ports of a direction
	RTT               time.Duration // of the empty path
}

// settings are those that both ends read packets by.
func (m *Multipath) settings() *roce.Transports {
	flag := uint8(0)
	if m.RetransmissionBit >= 0 {
		flag = 1 << m.RetransmissionBit
	}
	return &roce.Transports{
		VeRoCE: roce.VeRoCESettings{
			Enabled: true, Port: m.Port, Retransmission: flag,
			SACK: roce.Opcode(m.SACK), ResponseACK: roce.Opcode(m.ResponseACK), ResponseSACK: roce.Opcode(m.ResponseSACK),
		},
		MRC: roce.MRCSettings{Enabled: true, Retransmission: flag},
	}
}

// opcodes are the flags of those that are not settled, with what they are of.
func (m *Multipath) opcodes() map[string]*uint8 {
	return map[string]*uint8{"veroce-sack": &m.SACK, "veroce-response-ack": &m.ResponseACK, "veroce-response-sack": &m.ResponseSACK}
}

// Mixed posts WRITE, SEND and READ in turn.
const Mixed = rc.Op(255)

const (
	maxConnections = 256
	// Queue pair numbers: the requester's and the responder's are in different ranges, so that a capture is easily read.
	requesterQPN roce.QPN = 0x000100
	responderQPN roce.QPN = 0x000200
)

// DefaultOptions returns what a transfer without particular wishes uses.
func DefaultOptions() Options {
	return Options{
		Connections: 1, Op: rc.Write, Size: 1 << 20, Duration: 10 * time.Second, Drain: 2 * time.Second, Nap: 400 * time.Microsecond,
		Multipath: Multipath{Port: roce.VeRoCEPort, SACK: 0x18, ResponseACK: 0x19, ResponseSACK: 0x1a, RetransmissionBit: 6, Paths: 16, RTT: 20 * time.Millisecond},
		Config:    rc.Config{MTU: 4096, TOS: 2, Window: 1024, Timeout: 134 * time.Millisecond, Retries: 7, Depth: 16, Reads: 16, Seed: 1},
	}
}

var opNames = map[string]rc.Op{"write": rc.Write, "send": rc.Send, "read": rc.Read, "mixed": Mixed}

// opName is the operation as a flag.
func opName(op rc.Op) string {
	if op == Mixed {
		return "mixed"
	}
	return op.String()
}

// roles as a flag.
const (
	requester = "requester"
	responder = "responder"
)

// Register makes a command line flag of every option, with the present value as default.
func (o *Options) Register(fs *flag.FlagSet) {
	fs.Func("role", requester+" or "+responder, func(s string) error {
		o.Requester = s == requester
		if s != requester && s != responder {
			return errors.New("no such role")
		}
		return nil
	})
	fs.StringVar(&o.Device, "if", o.Device, "`interface`")
	fs.TextVar(&o.Local, "local", o.Local, "own `address`")
	fs.TextVar(&o.Remote, "remote", o.Remote, "the other end's `address`")
	fs.StringVar(&o.NextHop, "next-hop", o.NextHop, "`MAC` address of the next hop; default: from the routing and neighbour tables")
	fs.IntVar(&o.Connections, "qps", o.Connections, "connections")
	fs.Func("op", "`operation`: write (default), send, read or mixed (all three in turn)", func(s string) error {
		op, ok := opNames[s]
		if !ok {
			return errors.New("no such operation")
		}
		o.Op = op
		return nil
	})
	fs.Func("transport", "RoCEv2 (default), veRoCE (write or read) or MRC (write)", func(s string) error {
		for _, t := range roce.AllTransports() {
			if s == t.String() {
				o.Transport = t
				return nil
			}
		}
		return errors.New("no such transport")
	})
	m := &o.Multipath
	fs.Func("veroce-port", fmt.Sprintf("UDP `port` of veRoCE (default %d)", m.Port), func(s string) error {
		v, err := strconv.ParseUint(s, 0, 16)
		m.Port = uint16(v)
		return err
	})
	for name, opcode := range m.opcodes() {
		fs.Func(name, fmt.Sprintf("`opcode` of acknowledgements of veRoCE (default %#x)", *opcode), func(s string) error {
			v, err := strconv.ParseUint(s, 0, 8)
			*opcode = uint8(v)
			return err
		})
	}
	fs.IntVar(&m.RetransmissionBit, "retransmission-bit", m.RetransmissionBit, "veRoCE, MRC: `bit` of BTH octet 8 that marks a retransmission, below 0: none")
	fs.IntVar(&m.Paths, "paths", m.Paths, "veRoCE, MRC: UDP source ports of a direction")
	fs.DurationVar(&m.RTT, "rtt", m.RTT, "veRoCE, MRC: round-trip `time` of the empty path")
	fs.IntVar(&o.Size, "size", o.Size, "`octets` of a message")
	fs.IntVar(&o.Config.MTU, "mtu", o.Config.MTU, "RoCE path MTU")
	fs.IntVar(&o.Config.Depth, "depth", o.Config.Depth, "messages outstanding")
	fs.IntVar(&o.Config.Reads, "reads", o.Config.Reads, "of them, READs")
	fs.IntVar(&o.Config.Window, "window", o.Config.Window, "packets in flight")
	fs.Int64Var(&o.Config.Rate, "rate", o.Config.Rate, "`bits` per second at which data is paced, 0: not")
	fs.DurationVar(&o.Config.Timeout, "timeout", o.Config.Timeout, "local ACK timeout")
	fs.IntVar(&o.Config.Retries, "retries", o.Config.Retries, "retries in a row, below 0: for ever")
	fs.BoolVar(&o.Config.Coalesce, "coalesce", o.Config.Coalesce, "one ACK for all that came in a batch")
	fs.Func("tos", "TOS or traffic class, DSCP and ECN (default 2)", func(s string) error {
		v, err := strconv.ParseUint(s, 0, 8)
		o.Config.TOS = uint8(v)
		return err
	})
	fs.Uint64Var(&o.Config.Seed, "seed", o.Config.Seed, "of the payload, and the PSNs")
	fs.DurationVar(&o.Warmup, "warmup", o.Warmup, "requester: `time` before the measurement")
	fs.DurationVar(&o.Duration, "duration", o.Duration, "requester: `time` of the measurement")
	fs.DurationVar(&o.Drain, "drain", o.Drain, "requester: longest wait afterwards for messages that are outstanding")
	fs.DurationVar(&o.Nap, "nap", o.Nap, "pause between batches while there is traffic")
}

// Args returns the command line by which Register's flags give these options.
func (o *Options) Args() []string {
	role := responder
	if o.Requester {
		role = requester
	}
	args := []string{"-role", role, "-op", opName(o.Op), "-tos", strconv.Itoa(int(o.Config.TOS)), "-transport", o.Transport.String(),
		"-veroce-port", strconv.Itoa(int(o.Multipath.Port))}
	opcodes := o.Multipath.opcodes()
	for name, opcode := range opcodes {
		args = append(args, "-"+name, strconv.Itoa(int(*opcode)))
	}
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	o.Register(fs)
	fs.VisitAll(func(f *flag.Flag) {
		switch f.Name {
		case "role", "op", "tos", "transport", "veroce-port":
		default:
			if opcodes[f.Name] != nil {
				return
			}
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	return args
}

func (o *Options) validate() error {
	switch {
	case o.Device == "" || !o.Local.IsValid() || !o.Remote.IsValid():
		return errors.New("an endpoint needs -role, -if, -local and -remote")
	case o.Connections < 1 || o.Connections > maxConnections:
		return fmt.Errorf("%d connections are not between 1 and %d", o.Connections, maxConnections)
	case o.Warmup < 0 || o.Duration <= 0 || o.Drain < 0:
		return errors.New("warm-up, duration and drain must not be negative")
	case o.Transport.Multipath() && o.Op != rc.Write && (o.Transport != roce.VeRoCE || o.Op != rc.Read):
		return fmt.Errorf("%v does not %s; MRC writes, veRoCE writes or reads", o.Transport, opName(o.Op))
	case o.Multipath.RetransmissionBit > 6:
		return errors.New("bit 7 of BTH octet 8 asks for an acknowledgement")
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
