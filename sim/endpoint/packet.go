// SPDX-License-Identifier: Apache-2.0

package endpoint

import "time"

// PacketKind is what a packet is for.
type PacketKind uint8

// Kinds of packets.
const (
	Data    PacketKind = iota
	Parity             // of a fixed code: Seq is that of the block's first data packet, Other its place among the block's parity
	Ack                // all before Seq have come; and Other, unless it is Seq
	NAK                // go-back-N: all before Seq have come, Seq has not
	NACK               // the packets Seq to Other-1 are missing, for Reason
	Done               // the transfer whose last packet is Seq-1 is complete
	SACK               // as Ack, and the packets Edge+i for which bit i of Bits is set have come
	Request            // a READ: the packets Seq to Edge-1 of the message that begins with Other, and has Data octets in its last packet, are wanted
)

// Packet is a packet of a transport, without its octets.
type Packet struct {
	Kind   PacketKind
	AckReq bool
	First  bool // of an RDMA message
	Last   bool // of an RDMA message
	Cut    bool // the network trimmed it: its data is missing
	Again  bool // the transport's flag of a retransmission
	Reason Reason
	Data   int32
	Octets int32 // of the whole frame
	Seq    uint64
	Other  uint64
	// Edge is, of Data and Parity of a fixed code, the number after the transfer's last packet, which the receiver knows from what was posted; of
	// SACK the first packet that Bits tells of.
	Edge uint64
	Bits [2]uint64
	// Range is how many packets from Seq on the receiver of MRC takes.
	Range int32
}

// Reason is why a receiver names a packet in a NACK.
type Reason uint8

// Reasons.
const (
	Missing     Reason = iota // packets after it have come
	Trimmed                   // its data was cut off
	OutOfWindow               // it is further ahead than the receiver keeps track
	NoBuffer                  // it came before an older one, and the receiver has no room for more of these
)

// Octets of headers: Ethernet, IPv4, UDP, BTH and ICRC; the RETH of the first packet of a WRITE; and of an acknowledgement the AETH.
const (
	headers   = 14 + 20 + 8 + 12 + 4
	reth      = 16
	aeth      = 4
	ackOctets = headers + aeth
	// mrcEach is what MRC has beside: METH, and the RETH in every packet.
	mrcEach = 4 + reth
	// rdmaMessage is the most octets of one RDMA message; larger transfers are several.
	rdmaMessage = 1 << 30
)

// Poster is the end at which transfers are posted, and complete: the Sender, but with READ the Receiver.
type Poster interface {
	// Post adds a transfer of some octets.
	Post(now time.Duration, octets int64)
	// Completed appends the transfers that have completed since the last call, in order.
	Completed(dst []Completion) []Completion
	// Err is why the connection has failed, empty if it has not.
	Err() string
}

// PosterOf returns the end of a connection at which transfers are posted.
func PosterOf(s Sender, r Receiver) Poster {
	if p, ok := r.(Poster); ok {
		return p
	}
	return s
}

// Sender sends the data of transfers to a Receiver.
type Sender interface {
	Poster
	// Handle takes an answer that has arrived.
	Handle(now time.Duration, p *Packet)
	// Next returns a packet that leaves now, false if none may. Timers run in it.
	Next(now time.Duration) (Packet, bool)
	// NextDeadline is when Next must be called next, not after now if a packet is ready, roce.Never if only an answer or a post
	// changes anything.
	NextDeadline() time.Duration
	Stats() *SenderStats
}

// Receiver is the other end.
type Receiver interface {
	Handle(now time.Duration, p *Packet)
	Next(now time.Duration) (Packet, bool)
	NextDeadline() time.Duration
	// Expected is the number of the first packet that has not come.
	Expected() uint64
	Stats() *ReceiverStats
}

// Completion is a completed transfer.
type Completion struct {
	Posted, Completed time.Duration
	Octets            int64
}

// SenderStats are totals. Packets and octets are those that carry data or parity.
type SenderStats struct {
	Posted, Completed, CompletedOctets uint64
	Sent, SentOctets                   uint64
	Needed, NeededOctets               uint64 // of them: data that was sent for the first time
	Parity                             uint64
	Retransmitted                      uint64
	Acks, NAKs                         uint64 // taken
	Timeouts                           uint64
	Stale                              uint64 // answers that told nothing new
	Fallbacks                          uint64 // blocks of a fixed code that were sent again
}

// ReceiverStats are totals.
type ReceiverStats struct {
	Received, Accepted        uint64
	OutOfSequence, Duplicates uint64
	AcksSent, NAKsSent        uint64
	Decoded                   uint64 // packets restored by a fixed code
	OutOfWindow               uint64 // further ahead than the receiver keeps track
}

// answered counts an answer.
func (s *ReceiverStats) answered(p *Packet) {
	if p.Kind == NAK || p.Kind == NACK {
		s.NAKsSent++
	} else {
		s.AcksSent++
	}
}
