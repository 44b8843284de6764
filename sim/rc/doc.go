// SPDX-License-Identifier: Apache-2.0

// Package rc is a software queue pair of the RoCEv2 Reliable Connection transport, as a pure state machine: WRITE, SEND and READ, go-back-N, NAK,
// local ACK timeout and retry limit, as hardware and Soft-RoCE do them.
//
// It exists to be protected by CREM in tests, and to find out whether that went well: every octet of every message is a function of
// (seed, message number, offset), and the receiving end compares the memory octet by octet when a message completes. A wrong octet, a message that
// completes twice and one that completes out of turn all show as corrupt octets.
//
// A QP has a Requester (posts messages, sends requests, takes answers) and a Responder (takes requests, answers). Time is an argument, packets are
// appended to the caller's Batch; the same machine runs on a wire and in a simulator. Like most NICs it ignores congestion marks: its rate is set.
package rc
