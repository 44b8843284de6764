// SPDX-License-Identifier: Apache-2.0

// Package crf is the receiver function of CREM: one [Flow] per protected flow (draft sections 5 to 8; docs/protocol.md,
// Sections 5.1, 5.2, 6, 7 and 8.1).
//
// A Flow sees every source packet that arrives and every message of its peer. It restores lost packets, holds packets for
// order, asks for coded retransmission, and reports loss. Everything it wants done is appended to the caller's slice as an
// [Action]. It never reads a clock, sets a timer, or does I/O.
//
// # Where a rule is
//
//	handshake.go       HELLO_ACK, limits, the extension bits                 5.1
//	configuration.go   PARAM_UPDATE, PARAM_ACK, release                      5.2
//	source.go          an arriving source packet                             4.2, 6
//	position.go        24-bit PSNs as ever-growing positions
//	segment.go         what is known about 64 positions
//	window.go          recent sources: what is kept, and how long
//	gap.go             missing positions of which no REPAIR came             6.3
//	unseen.go          packets that passed without a copy
//	response.go        when a gap of the response space counts               4.4 rule 2
//	late.go            which copies may be used for decoding                 6.2, CRF 1
//	block.go           blocks known by their REPAIRs                         6 rules 1, 8
//	repair.go          a REPAIR arrives                                      6 rule 2
//	decode.go          when and from what a block is decoded                 6 rule 2, CRF 2, 6.4
//	verify.go          what a restored packet must satisfy                   6 rule 3
//	identification.go  predicting the IPv4 Identification                    6.5
//	restore.go         the headers of a restored packet                      6 rules 4, 5
//	hold.go            delivery in order, and every way out of it            6 rules 6, 7
//	unanswered.go      no waiting while nobody repairs                       6 rule 7
//	rewind.go          what the second run of a sender that went back loses comes from memory
//	request.go         REPAIR_REQUEST: when, which form, how often           7.1, 7.3
//	rtt.go             SRTT and what is reckoned from it                     5.1 rule 9
//	report.go          LOSS_REPORT                                           8.1
//	skew.go            how late a packet may be that others overtook          4.4 rule 4
//	overtaken.go       restored packets that were late and not lost          8.1 rule 3
//	timer.go           Poll and NextDeadline
//	stats.go           counters, gauges, reasons
//
// # The order of worries
//
// Wrong octets are the worst fault, a stalled flow the second, an unprotected flow the third. So every doubt about a copy makes
// it unknown for decoding, every held packet has a deadline, and whatever runs out (memory, time, rounds) ends in packets
// passing as if CREM were not there.
package crf
