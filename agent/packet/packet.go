// SPDX-License-Identifier: Apache-2.0

// Package packet moves packets between the kernel and a worker of the agent, in batches and without allocation:
//
//   - Tap copies what the uplink sends and the few RDMA packets it receives that tell about acknowledgement (CSF),
//   - Ring delivers the packets of protected flows with the verdict that the kernel program gave them (CRF),
//   - Injector puts released and restored packets back into the uplink's receive path,
//   - Socket carries the CREM messages,
//   - Holder is the table of protected flows that the kernel program follows.
//
// The interfaces are small so that package fake can stand in for all of them. Every value belongs to one worker and is
// not safe for concurrent use, unless its comment says otherwise.
package packet

import (
	"net/netip"
	"sync/atomic"
	"time"
)

// FrameFlags tell how a frame came.
type FrameFlags uint32

// Flags of a frame.
const (
	// Outgoing: the uplink sent it (tap). Without it the uplink received it.
	Outgoing FrameFlags = 1 << iota
	// Cut: Data ends before the frame does; Len is the whole length (tap, incoming packets).
	Cut
	// VLAN: the frame carried a VLAN tag that is not in Data. Never coded.
	VLAN
	// GSO: a super-packet that a network device will cut later. Never coded.
	GSO
	// PartialChecksum: the UDP checksum in Data was left to the device; it has been finished in Data if the frame is whole.
	PartialChecksum
	// Held: the kernel gave the packet up; it lives only if it is injected (ring).
	Held
	// Behind: PSN before the expected one, a retransmission or duplicate, passed (ring).
	Behind
	// Learned: the first packet after LEARN; the expected PSN was taken from it (ring).
	Learned
	// Taken: a CREM message for an endpoint of our site, taken from the path; it goes no further (ring).
	Taken
	// Segment: Data is one message out of a received super-packet: the lengths in its IP and UDP headers are those of
	// the whole; the message is what follows the UDP header in Data (ring, with Taken).
	Segment
	// Tunnelled: the frame was in an IP-in-IP tunnel, whose header is taken off; Outer has its addresses (tap).
	Tunnelled
)

// NoFlow is the flow index of a frame that belongs to no registered flow.
const NoFlow = -1

// Frame is one frame from a tap or a ring. Data aliases memory that the kernel writes again after Release.
type Frame struct {
	Data    []byte        // octets from the Ethernet header on
	Len     int           // octets of the whole frame
	Time    time.Duration // when the kernel saw it, on the clock of Now
	Flags   FrameFlags
	Ifindex int    // the uplink
	Flow    int    // index of the registered flow (ring), else NoFlow; may lag behind UnregisterFlow, so compare the key
	Domain  uint32 // domain of a Taken message
	Outer   Ends   // of a Tunnelled frame
}

// Ends are the addresses of an outer header.
type Ends struct{ Src, Dst netip.Addr }

// Tap is a stream of copies of an uplink's RoCEv2 packets. Closing or killing it never affects the packets.
type Tap interface {
	// Next fills frames and returns how many; 0 when nothing is there. It never blocks. The frames stay valid until
	// Release; further calls of Next before Release give further frames.
	Next(frames []Frame) int
	// Release gives the memory of all frames delivered so far back to the kernel.
	Release()
	// LookIntoTunnels chooses whether packets in IP-in-IP tunnels are of interest too; at first they are not. It may be called
	// while another goroutine calls Next.
	LookIntoTunnels(on bool) error
	// Gone reports whether the interface was taken away. The tap sees nothing any more, also when there is one of the same index again.
	Gone() bool
	// FD is readable when Next would return something.
	FD() int
	// Stats are totals since the start.
	Stats() TapStats
	Close() error
}

// TapStats are totals of a tap.
type TapStats struct {
	Frames  uint64 // delivered by Next
	Dropped uint64 // copies that the kernel could not store: ring full. The packets themselves were not affected
	Bad     uint64 // frames that Next skipped: cut outgoing packets
}

// Ring is a worker's stream from the ingress programs of all uplinks, in the order in which packets were judged.
type Ring interface {
	// Next fills frames and returns how many; 0 when nothing is there. It never blocks. The frames stay valid until
	// Release; further calls of Next before Release give further frames. Data may be written by the caller.
	Next(frames []Frame) int
	// Release gives the slots of all frames delivered so far back to the kernel program.
	Release()
	// Backlog is the number of slots in use, delivered or not, and Size how many there are.
	Backlog() int
	Size() int
	// Missed is the number of packets of this worker's flows that passed without a copy (ring full, stale heartbeat,
	// bypass, too long). Their PSNs look like losses to the receiver function.
	Missed() uint64
}

// Injector puts frames into the receive path of an uplink as if they had arrived there.
type Injector interface {
	// Inject queues head||payload, a frame with the destination MAC address under which packets arrive at the uplink.
	// Both must stay valid and unchanged until Flush returns.
	Inject(ifindex int, head, payload []byte)
	// Flush sends what is queued, in order. What the kernel refuses after a bounded number of tries is counted and dropped.
	Flush()
	Stats() InjectStats
	Close() error
}

// InjectStats are totals of an injector.
type InjectStats struct {
	Sent    uint64
	Retries uint64 // full queues met on the way
	Dropped uint64
}

// Message is one received CREM message.
type Message struct {
	Data    []byte         // UDP payload, valid until the next Recv
	From    netip.AddrPort // never an IPv4-mapped address
	To      netip.Addr     // the address that it was sent to
	TOS     uint8          // TOS or traffic class: DSCP and ECN
	Ifindex int
}

// Source is where a message leaves. Comparable.
type Source struct {
	Addr netip.Addr // source address, which need not be the node's own; zero: the kernel chooses
	// Ifindex is the interface by which it must leave; 0: the routes say. Over IPv6 the kernel still goes by the routes where none leads there.
	Ifindex int
}

// Socket sends and receives CREM messages of one worker, over IPv4 and IPv6.
type Socket interface {
	// Recv fills msgs and returns how many; it never blocks. Data of the messages is valid until the next Recv.
	Recv(msgs []Message) int
	// Send queues one message. msg must stay valid and unchanged until Flush returns. Runs of messages with equal to, from and
	// tos, and equal length but for a shorter last one, leave as one system call's segments.
	Send(to netip.AddrPort, from Source, tos uint8, msg []byte)
	// Flush sends what is queued, in order for each destination.
	Flush()
	// FDs are readable when Recv would return something.
	FDs() []int
	Stats() SocketStats
	Close() error
}

// SocketStats are totals of a socket.
type SocketStats struct {
	Received  uint64
	Sent      uint64
	Segmented uint64 // of Sent, messages that left as segments of a super-packet
	TooBig    uint64 // not sent: larger than the path MTU
	Failed    uint64 // not sent for another reason (no route, full queue)
	Truncated uint64 // received but longer than the receive buffer: dropped
}

// FlowKey names the packets of one flow in one PSN space. Comparable. Addresses are never IPv4-mapped.
type FlowKey struct {
	Src, Dst netip.Addr
	QPN      uint32 // destination queue pair, 24 bits
	Response bool   // the response space: READ responses and ATOMIC acknowledgements
	// Transport is the number of the roce.Transport.
	Transport uint8
}

// Recognised is what is taken for a packet of a transport beside RoCEv2. The zero value knows no other.
type Recognised struct {
	MRC        bool
	VeRoCEPort uint16 // UDP destination port; 0: none
	// VeRoCEAnswers are the opcodes of veRoCE that acknowledge packets of the other direction.
	VeRoCEAnswers [4]uint8
}

// Mode is how the kernel program treats a registered flow.
type Mode uint8

const (
	// InOrder holds packets after a gap.
	InOrder Mode = iota
	// Immediate copies and passes every packet; the flow's word is not used.
	Immediate
)

// Holder is the flow table of the kernel program. RegisterFlow, UnregisterFlow, UpdateFlow and Seen may be called by
// any worker at any time; the other methods for an index only by the worker of the flow.
type Holder interface {
	// RegisterFlow makes the program copy the flow's packets into the worker's ring; the flow starts in state LEARN.
	// mtu is the flow's RDMA MTU in octets, 256 to 4096.
	RegisterFlow(key FlowKey, worker, mtu int, mode Mode) (index int, err error)
	// UnregisterFlow makes the flow's packets pass uncopied. Frames already in the ring still carry the index.
	UnregisterFlow(index int) error
	// UpdateFlow changes what RegisterFlow set. A change of mode restarts at LEARN.
	UpdateFlow(index, mtu int, mode Mode) error
	// Word is the flow's word; see type Word. It points into memory shared with the program, valid until UnregisterFlow.
	Word(index int) *atomic.Uint64
	// Missed is the number of the flow's packets that passed without a copy: they look like losses and are none.
	Missed(index int) uint64
	// SetSure tells for a response flow that the PSNs from..to-1 will be used by responses (a READ or ATOMIC request
	// was seen), so that a gap there is a loss. from == to: none.
	SetSure(index int, from, to uint32)
	// HandBack returns the flow to the kernel if it is in HOLD and the program has held exactly held packets in all,
	// so that no packet can overtake another. next is the PSN to expect; inside tells that it lies within a response
	// message (response space only). What was to leave before must be flushed. False: more packets are in the ring, or
	// injected frames are still on their way; try again after the next batch.
	HandBack(index int, held uint64, next uint32, inside bool) bool
	// Beat tells that the worker is alive; without it for 10 ms its flows pass uncopied. now is the time of Now.
	Beat(worker int, now time.Duration)
	// SetBypass makes all flows pass uncopied (or ends that), whatever Beat says.
	SetBypass(on bool)
	// Seen tells whether an unregistered flow's packets arrived, and how long ago the last one did (to a millisecond).
	Seen(key FlowKey) (age time.Duration, ok bool)
}
