// SPDX-License-Identifier: Apache-2.0

package model

import "math"

// Path is a link between two sites.
type Path struct {
	Bandwidth float64 // bits per second
	RTT       float64 // seconds
	Loss      float64 // probability that a packet is lost on the way there, from 0 to 0.5
	Back      float64 // probability that an acknowledgement is lost on the way back; 0 in published models
	Burst     float64 // mean length of a run of losses in packets, geometric; 1 or less: losses are independent
}

// Message is one RDMA message.
type Message struct {
	Octets int64 // of data
	Packet int   // octets of data in a packet
	Head   int   // octets that a packet takes on the wire beside its data
}

// Packets is how many packets the message takes.
func (m Message) Packets() float64 { return math.Ceil(float64(m.Octets) / float64(m.Packet)) }

// PacketTime is how long one packet of the message takes to be sent, in seconds.
func (p Path) PacketTime(m Message) float64 { return float64(m.Packet+m.Head) * 8 / p.Bandwidth }

// Lossless is the completion time without loss: sending, and the round trip until the last acknowledgement is in.
func (p Path) Lossless(m Message) float64 { return m.Packets()*p.PacketTime(m) + p.RTT }

// runs is the mean length of a run of losses, at least 1.
func (p Path) runs() float64 { return max(p.Burst, 1) }
