// SPDX-License-Identifier: Apache-2.0

// Package endpoint has the transports of the simulator as pure machines: what each decides to send, and when, and nothing else.
//
// A Sender is given transfers (Post) and answers (Handle), and asked for packets (Next); a Receiver is given packets and asked for answers.
// Packets are numbered from 0 and have a size but no octets: sim/gateway makes real RoCEv2 packets of them where CREM must see some.
//
// Where a transport is:
//
//	gobackn.go   RoCEv2 RC, WRITE and SEND: go-back-N, one NAK a gap, local ACK timeout, retry count
//	read.go      RoCEv2 RC, READ: responses in order, implied NAK, local ACK timeout, retry count
//	repeat.go    selective repeat with a retransmission timeout, with or without NACKs (SDR-RDMA Section 4.1)
//	coded.go     a fixed erasure code, MDS or XOR, that falls back to selective repeat (SDR-RDMA Section 4.2)
//	mrc.go       Multipath Reliable Connection: SACK, NACK, max_psn_range, local ACK timeout
//	veroce.go    veRoCE: cumulative ACK, lazy SACK, RxtPSN, Packet Drop NAK, transport timer
//	veroceread.go  veRoCE, READ: requests and responses in PSN spaces of their own
//
// go-back-N follows the rules of sim/rc, the queue pair of the lab, and a test compares the two packet by packet.
package endpoint
