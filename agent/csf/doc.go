// SPDX-License-Identifier: Apache-2.0

// Package csf is the CREM sender function: one Flow is the machine of one protected flow.
//
// The engine shows a Flow every source packet that leaves, every RDMA acknowledgement that comes back, every CREM message of
// its peer, and the time. The Flow appends to the caller's slice what must be sent. Source packets themselves go their way
// untouched; the Flow only reads them.
//
// Where to find a rule of the protocol:
//
//	params.go          what an operator can set
//	csf.go             the Flow: source packets in, Poll and NextDeadline
//	env.go             what the flows of a worker share
//	handshake.go       HELLO, several peers, back-off, CLOSE (Section 5.1)
//	presence.go        whether a gateway that did not answer is back (Section 5.1)
//	configuration.go   PARAM_UPDATE, Config IDs, Effective PSN (Section 5.2)
//	reading.go         RDMA MTU from READ requests (Section 5.1)
//	symbol.go          RDMA MTU guess, T, what must fit the path MTU (Section 4)
//	block.go           positions, when a block closes, consistency CSF 1 to CSF 4 (Sections 4.2 and 6)
//	gather.go          blocks that wait for packets which others overtook before the CSF (Section 4.4)
//	pace.go            how a flow sends: silence, and slow senders (Sections 4.2 and 5.3)
//	restart.go         a queue pair number that is used again (Section 4)
//	redundancy.go      how many repair symbols (Section 5.3)
//	loss.go            the estimate p, what is congestion (Sections 5.3 and 8.1)
//	sites.go           what all flows to a site know of the loss, on whatever worker (Section 5.3)
//	clusters.go        how losses follow each other (Section 8.1)
//	repair.go          ordinary repair symbols and how they are spread (Section 5.4)
//	retransmission.go  answers to REPAIR_REQUEST (Section 7)
//	retention.go       which blocks are kept, and how long (Section 7)
//	report.go          LOSS_REPORT (Section 8.1)
//	path.go            PATH_REPORT: what is congestion (Section 8.2)
//	early.go           PATH_REPORT: repairs for packets that a node dropped (Section 8.2)
//	delay.go           the sender's own view of queues, shared by the flows of a path (Section 5.3)
//	restraint.go       no more repair traffic during congestion than before (Section 10)
//	window.go          what was sent in the last SRTT (Section 10)
//	budget.go          limits on repair traffic per flow and per node (Section 10)
//	congestion.go      the reaction to congestion on the repair path (Section 10)
//	pacing.go          never faster than the flow itself (Section 10)
//	breaker.go         the circuit breaker (Section 10)
//	rtt.go             SRTT (Section 5.1)
//	stats.go           counters, gauges, reasons
//	explain.go         why this m, or why not protected
//
// A Flow is not safe for concurrent use; all flows of one worker share one Env, and all workers what is known of sites. Nothing is allocated per packet in steady
// state. Time is an argument everywhere.
package csf
