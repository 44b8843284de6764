// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/sim/model"
)

// Transport is how the NICs recover from loss by themselves.
type Transport string

// Transports.
const (
	GoBackN             Transport = "go-back-n"              // RoCEv2 RC as most NICs have it
	SelectiveRepeat     Transport = "selective-repeat"       // a NACK tells of a loss after a round trip
	SelectiveRepeatTime Transport = "selective-repeat-timer" // a timer of three round trips does
	MRC                 Transport = "mrc"                    // Multipath Reliable Connection
	VeRoCE              Transport = "veroce"                 // RoCE with selective acknowledgements
)

// Transports in the order in which they are offered.
var Transports = []Transport{GoBackN, SelectiveRepeat, SelectiveRepeatTime, MRC, VeRoCE}

// Input is the question.
type Input struct {
	RTT       time.Duration `json:"rttNanoseconds"`
	Bandwidth int64         `json:"bandwidthBitsPerSecond"` // of the link
	Loss      float64       `json:"loss"`                   // share of packets, in each direction
	Burst     float64       `json:"burst"`                  // mean length of a run of losses, 1: independent
	// LosslessBack: acknowledgements are never lost, as published models have it.
	LosslessBack bool      `json:"losslessBack,omitempty"`
	Message      int64     `json:"messageOctets"`
	Transport    Transport `json:"transport"`
	Flows        int       `json:"flows"` // queue pairs that share the link evenly

	LinkMTU int  `json:"linkMTU"` // IP MTU of the link, 0: large enough
	RDMAMTU int  `json:"rdmaMTU"` // octets of data per packet, 0: the largest that fits
	IPv6    bool `json:"ipv6"`    // of the flows and of CREM's messages
	Tunnel  int  `json:"tunnel"`  // octets that a tunnel (GRE, UDP, ESP) adds to each packet on the link

	AckTimeout int    `json:"ackTimeout"`            // exponent n of the NIC's local ACK timeout, 4.096 us x 2^n; 0: not known
	Window     int64  `json:"windowOctets"`          // octets that a queue pair keeps in flight at most; 0: not known
	Memory     int64  `json:"memoryOctets"`          // of crem-agent run --memory; 0: as much as the plan says
	Site       string `json:"destination,omitempty"` // name of the other site, for the profile's selector
}

// rdmaMTUs that RoCE knows, the largest first.
var rdmaMTUs = []int{4096, 2048, 1024, 512, 256}

// maxFlows bounds Flows: more queue pairs than a link has in use.
const maxFlows = 1 << 16

// mostLoss is the loss up to which there is something to plan.
const mostLoss = 0.3

// Normal fills in what follows from the rest, or says in one sentence what is wrong and what to write.
func (in Input) Normal() (Input, error) {
	if in.Burst == 0 {
		in.Burst = 1
	}
	if in.Flows == 0 {
		in.Flows = 1
	}
	if in.Transport == "" {
		in.Transport = GoBackN
	}
	switch {
	case in.RTT < 10*time.Microsecond || in.RTT > 2*time.Second:
		return in, fmt.Errorf("rtt %s: write the round-trip time of the link, from 10us to 2s, for instance 25ms", in.RTT)
	case in.Bandwidth < 1e6 || in.Bandwidth > 10e12:
		return in, fmt.Errorf("bandwidth %d: write the rate of the link in bits per second, from 1M to 10T, for instance 100G", in.Bandwidth)
	case !(in.Loss >= 0) || in.Loss > mostLoss:
		return in, fmt.Errorf("loss %g: write the share of packets that the link loses, from 0 to %g, for instance 1e-4 or 0.01%%", in.Loss, mostLoss)
	case !(in.Burst >= 1) || in.Burst > 64:
		return in, fmt.Errorf("burst %g: write the mean number of packets lost in a row, from 1 to 64", in.Burst)
	case in.Message < 1 || in.Message > 1<<40:
		return in, fmt.Errorf("message %d: write the size of one message, from 1 to 1024Gi, for instance 128Mi", in.Message)
	case !slices.Contains(Transports, in.Transport):
		return in, fmt.Errorf("transport %q: write %s", in.Transport, names(Transports))
	case in.Flows < 1 || in.Flows > maxFlows:
		return in, fmt.Errorf("flows %d: write the number of queue pairs that share the link, from 1 to %d", in.Flows, maxFlows)
	case in.Tunnel < 0 || in.Tunnel > 512:
		return in, fmt.Errorf("tunnel %d: write the octets that a tunnel adds to each packet, from 0 to 512, for instance 24 for GRE over IPv4", in.Tunnel)
	case in.LinkMTU != 0 && (in.LinkMTU < 576 || in.LinkMTU > 65535):
		return in, fmt.Errorf("mtu %d: write the IP MTU of the link, from 576 to 65535, for instance 9000", in.LinkMTU)
	case in.RDMAMTU != 0 && !slices.Contains(rdmaMTUs, in.RDMAMTU):
		return in, fmt.Errorf("rdma-mtu %d: write 256, 512, 1024, 2048 or 4096", in.RDMAMTU)
	case in.AckTimeout < 0 || in.AckTimeout > 31:
		return in, fmt.Errorf("ack-timeout %d: write the exponent that the NIC is given (NCCL_IB_TIMEOUT, qp_attr.timeout), from 1 to 31", in.AckTimeout)
	case in.Memory != 0 && (in.Memory < 16<<20 || in.Memory > 1<<40):
		return in, fmt.Errorf("memory %d: write what crem-agent run --memory is given, from 16Mi to 1024Gi", in.Memory)
	case in.Window < 0 || in.Window > 1<<40:
		return in, fmt.Errorf("window %d: write the octets that one queue pair keeps in flight at most, up to 1024Gi, for instance 64Mi", in.Window)
	}
	if in.RDMAMTU == 0 {
		in.RDMAMTU = rdmaMTUs[len(rdmaMTUs)-1]
		for _, mtu := range rdmaMTUs {
			if in.LinkMTU == 0 || in.neededMTU(mtu, defaultK) <= in.LinkMTU {
				in.RDMAMTU = mtu
				break
			}
		}
	}
	return in, nil
}

func names[T ~string](list []T) string {
	words := make([]string, len(list))
	for i, x := range list {
		words[i] = string(x)
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// ipHeader is the octets of an IP header.
func (in *Input) ipHeader() int {
	if in.IPv6 {
		return 40
	}
	return 20
}

const (
	udpHeader = 8
	// framing is what Ethernet takes beside the IP packet: header, check, preamble and gap.
	framing = 14 + 4 + 8 + 12
	// bthICRC is the BTH and the invariant CRC of a packet that has data alone.
	bthICRC = 12 + 4
)

const (
	// bitmapHeaders is what headers that RoCEv2 does not have take in the largest packet of MRC (METH and a timestamp) and of veRoCE (message and
	// packet number).
	bitmapHeaders = 8
	// variedPort is what a symbol has more where the UDP source port varies: that, and the Identification.
	variedPort = 4
	// eachHeader is what MRC adds to every packet: METH and RETH.
	eachHeader = 4 + 16
)

// bitmaps says that the transport tells by bitmaps which packets have come, in any order.
func (t Transport) bitmaps() bool { return t == MRC || t == VeRoCE }

// wider is how much larger the largest symbol is than with RoCEv2.
func (in *Input) wider() int {
	if in.Transport.bitmaps() {
		return bitmapHeaders + variedPort
	}
	return 0
}

// neededMTU is the IP MTU of the link that the largest REPAIR needs.
func (in *Input) neededMTU(rdmaMTU, k int) int {
	return wire.NeededMTU(rdmaMTU, k, in.IPv6) + in.wider() + in.Tunnel
}

// packetMTU is the IP MTU that the largest RDMA packet needs, with or without CREM.
func (in *Input) packetMTU(rdmaMTU int) int {
	size := in.ipHeader() + udpHeader + roce.WriteOnlyImm.HeaderLen() + rdmaMTU + 4 + in.Tunnel
	if in.Transport.bitmaps() {
		size += bitmapHeaders
	}
	return size
}

// head is what a packet takes on the wire beside its data.
func (in *Input) head() int {
	head := framing + in.Tunnel + in.ipHeader() + udpHeader + bthICRC
	if in.Transport == MRC {
		head += eachHeader
	}
	return head
}

// repairRatio is what a REPAIR takes on the wire over what a packet takes.
func (in *Input) repairRatio(k int) float64 {
	return float64(in.neededMTU(in.RDMAMTU, k)+framing) / float64(in.RDMAMTU+in.head())
}

// path is one flow's part of the link.
func (in *Input) path() model.Path {
	p := model.Path{Bandwidth: in.rate(), RTT: in.RTT.Seconds(), Loss: in.Loss, Back: in.Loss, Burst: in.Burst}
	if in.LosslessBack {
		p.Back = 0
	}
	return p
}

// rate of one flow in bits per second: its part of the link, or what its window allows.
func (in *Input) rate() float64 {
	rate := float64(in.Bandwidth) / float64(in.Flows)
	if in.Window > 0 {
		rate = min(rate, float64(in.Window)*8/in.RTT.Seconds())
	}
	return rate
}

func (in *Input) message() model.Message {
	return model.Message{Octets: in.Message, Packet: in.RDMAMTU, Head: in.head()}
}

// inFlight is the packets of one flow in a round trip.
func (in *Input) inFlight() float64 {
	p := in.path()
	packets := math.Ceil(p.RTT / p.PacketTime(in.message()))
	if w := in.transportWindow(); w > 0 {
		packets = min(packets, w)
	}
	return packets
}

// transportWindow is how many packets the transport itself lets be in flight, 0: any number.
func (in *Input) transportWindow() float64 {
	p, m := in.path(), in.message()
	switch in.Transport {
	case MRC:
		return model.MRCWindow(p, m)
	case VeRoCE:
		return model.VeRoCEWindow(p, m)
	default: // go-back-N and selective repeat have what the queue pair is given
		return 0
	}
}

// ackUnit is the unit of the local ACK timeout.
const ackUnit = 4096 * time.Nanosecond

// ackTimeout is a local ACK timeout.
func ackTimeout(exponent int) time.Duration { return ackUnit << exponent }

// timeoutAbove is the exponent of the smallest local ACK timeout over d, and at least the 14 (67 ms) that most software sets.
func timeoutAbove(d time.Duration) int {
	n := 14
	for n < 31 && ackTimeout(n) <= d {
		n++
	}
	return n
}
