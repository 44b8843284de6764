// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"errors"
	"fmt"
	"time"
)

// Kind is a transport.
type Kind uint8

// Transports.
const (
	GoBackN Kind = iota
	SelectiveRepeat
	Coded
	MRC
	VeRoCE
	kinds
)

var kindNames = [kinds]string{"go-back-N", "selective repeat", "fixed code", "MRC", "veRoCE"}

// String returns the transport's name.
func (k Kind) String() string {
	if k >= kinds {
		return "unknown"
	}
	return kindNames[k]
}

// Operation is what RDMA does with the data of a transfer.
type Operation uint8

// Operations. Only GoBackN has Send, only GoBackN and VeRoCE have Read.
const (
	Write Operation = iota
	Send
	Read
)

// Config is the settings of a transport. Where 0 stands for a default, it follows from the link.
type Config struct {
	Kind      Kind
	Operation Operation

	// Window bounds the packets sent and not acknowledged. 0: SelectiveRepeat and Coded as many as numbering allows, the others twice the
	// packets of a round trip.
	Window int
	// Timeout is the local ACK timeout, and how long SelectiveRepeat waits for the acknowledgement of a packet. 0: SelectiveRepeat and
	// Coded 3 round trips, the others the smallest 4.096 us x 2^n that is over two round trips, at least n = 14.
	Timeout time.Duration
	// Retries is how often in a row GoBackN goes back without progress, and MRC and VeRoCE send a packet after a timeout, before the connection
	// fails; 0: 7, below 0: for ever.
	Retries int
	// Range is how many packets the receiver of MRC (max_psn_range) and VeRoCE (its physical bitmap) keeps track of. 0: MRC twice the
	// packets of a round trip, in units of 128 and at most the 32,640 that its field holds; VeRoCE as Window.
	Range int
	// Room is how many packets that came before an older one the receiver of MRC has buffers for; 0: for as many as its range.
	Room int
	// Distance is how many packets may overtake one before MRC's sender takes it for lost, and VeRoCE's receiver sends a SACK; 0: 16.
	Distance int
	// NACK makes the receiver of SelectiveRepeat name missing packets, so that a loss costs one round trip.
	NACK bool

	// Reads is how many READs a requester has under way; 0: 16.
	Reads int

	// Code is the erasure code of Coded.
	Code Code

	// Bare packets have no headers: their size is their data, as in published models.
	Bare bool
}

// Code is a fixed erasure code: every K packets of data are followed by M of parity.
type Code struct {
	K, M int // K at most 64, M at most 64
	XOR  bool
	// Patience is how many round trips after the last packet should have come the receiver asks for what is missing; 0: 0.5.
	Patience float64
}

// Path is what a transport knows of the path.
type Path struct {
	MTU    int           // octets of data per packet
	RTT    time.Duration // of the empty path
	Packet time.Duration // to send a packet of MTU
}

const (
	maxWindow      = 1 << 23 // half the PSN space
	leastWindow    = 64
	ackTimeoutUnit = 4096 * time.Nanosecond
	usualTimeout   = 14 // 67 ms
	usualRetries   = 7
	usualPatience  = 0.5
	usualDistance  = 16
	usualReads     = 16
	maxReads       = 1 << 16
	repeatRTTs     = 3
)

// normal returns the settings with defaults filled in, or what is wrong with them.
func (c Config) normal(p Path) (Config, error) {
	switch {
	case c.Kind >= kinds:
		return c, fmt.Errorf("transport %d is not known", c.Kind)
	case c.Window < 0 || c.Window > maxWindow || c.Timeout < 0:
		return c, errors.New("a window is between 0 and 2^23 packets, a timeout not negative")
	case c.Operation > Read || c.Operation == Send && c.Kind != GoBackN || c.Operation == Read && c.Kind != GoBackN && c.Kind != VeRoCE:
		return c, errors.New("only go-back-N has SEND, only go-back-N and veRoCE have READ")
	case c.Room < 0 || c.Room > 0 && c.Kind != MRC:
		return c, errors.New("room for packets out of order is of MRC, and not negative")
	case c.Reads < 0 || c.Reads > maxReads:
		return c, fmt.Errorf("between 0 and %d READs are under way", maxReads)
	case c.Range < 0 || c.Range > maxWindow || c.Distance < 0 || c.Kind == MRC && (c.Range%rangeUnit != 0 || c.Range > mostRange):
		return c, errors.New("a range is between 0 and 2^23 packets, that of MRC a multiple of 128 up to 32,640; a distance is not negative")
	case c.Kind == Coded && (c.Code.K < 1 || c.Code.K > 64 || c.Code.M < 1 || c.Code.M > 64 || c.Code.Patience < 0):
		return c, errors.New("a code has 1 to 64 packets of data and of parity, and a patience that is not negative")
	case p.MTU < 1 || p.RTT < 0 || p.Packet <= 0:
		return c, errors.New("a path needs an MTU and a packet time")
	}
	flight := min(max(2*int(p.RTT/p.Packet), leastWindow), maxWindow)
	numbered := c.Kind == SelectiveRepeat || c.Kind == Coded
	if c.Window == 0 {
		c.Window = flight
		if numbered {
			c.Window = maxWindow
		}
	}
	if c.Timeout == 0 {
		c.Timeout = repeatRTTs * p.RTT
		if !numbered {
			c.Timeout = ackTimeoutUnit << usualTimeout
			for c.Timeout <= 2*p.RTT {
				c.Timeout *= 2
			}
		}
	}
	if c.Range == 0 {
		c.Range = c.Window
		if c.Kind == MRC {
			c.Range = min((flight+rangeUnit-1)/rangeUnit*rangeUnit, mostRange)
		}
	}
	if c.Room == 0 {
		c.Room = c.Range
	}
	if c.Distance == 0 {
		c.Distance = usualDistance
	}
	if c.Reads == 0 {
		c.Reads = usualReads
	}
	if c.Retries == 0 {
		c.Retries = usualRetries
	}
	if c.Code.Patience == 0 {
		c.Code.Patience = usualPatience
	}
	return c, nil
}

// New returns both ends of a connection.
func New(c Config, p Path) (Sender, Receiver, error) {
	c, err := c.normal(p)
	if err != nil {
		return nil, nil, err
	}
	switch c.Kind {
	case SelectiveRepeat:
		return newRepeatSender(c, p), newRepeatReceiver(c, p), nil
	case Coded:
		return newCodedSender(c, p), newCodedReceiver(c, p), nil
	case MRC:
		return newMRCSender(c, p), newMRCReceiver(c), nil
	case VeRoCE:
		if c.Operation == Read {
			return newVeRoCEResponder(c, p), newVeRoCERequester(c, p), nil
		}
		return newVeRoCESender(c, p), newVeRoCEReceiver(c), nil
	case GoBackN:
		if c.Operation == Read {
			r := newReadRequester(c, p)
			return &readResponder{asker: r}, r, nil
		}
	default:
	}
	return newGoBackNSender(c, p), newGoBackNReceiver(c), nil
}
