// SPDX-License-Identifier: Apache-2.0

package engine

import "crem.dev/crem/agent/roce"

// counter is what a worker counts besides drops.
type counter uint8

const (
	countUnprotected counter = iota // source packets of flows that no profile takes
	countPassedOn                   // held packets that no machine took, put back at once
	countHandedBack                 // flows returned to the kernel after a hold
	countMessages                   // CREM messages read
	countForwarded                  // messages handed to another worker
	countCloseSent                  // CLOSE in answer to a Flow ID that is not ours any more
	countRewinds                    // senders that went back, followed by the kernel's expectation
	numCounters
)

var counterNames = [numCounters]string{
	countUnprotected: "unprotected_source_packets",
	countPassedOn:    "passed_on_packets",
	countHandedBack:  "flows_handed_back",
	countMessages:    "messages",
	countForwarded:   "messages_forwarded",
	countRewinds:     "rewinds",
	countCloseSent:   "closes_for_unknown_flows",
}

// drop is why the engine left a packet uncoded or a message unanswered. No reason here loses an RDMA packet.
type drop uint8

const (
	dropVLAN         drop = iota // VLAN-tagged RoCEv2: not what the wire of an IP uplink carries
	dropSuperPacket              // a super-packet that a device will cut: segmentation offload is on
	dropFlowTable                // the flow table is full
	dropNoSocket                 // the domain's socket is gone
	dropMessage                  // not a CREM message: version, type or length, or taken and no UDP datagram
	dropOutside                  // from an address outside the domain
	dropUnknownFlow              // Flow ID or nonce that names no flow
	dropWrongPeer                // not from the address that sent HELLO or HELLO_ACK
	dropWrongAddress             // taken from the path, but not to the address that the flow uses
	dropFlowKind                 // HELLO for a Flow Kind that this agent does not know
	dropNoProfile                // HELLO for a flow that no profile takes here
	dropNotOnPath                // HELLO for a flow whose packets do not arrive here
	dropOtherPeer                // HELLO for a flow that another sender protects
	dropHelloRate                // HELLO over the sender's limits
	dropReplay                   // HELLO with a nonce of an earlier series
	dropReporter                 // PATH_REPORT from outside the reporters
	dropUnsecured                // not covered by the IPsec policies that the domain requires
	dropMailbox                  // the owner's mailbox is full
	dropTunnel                   // in a tunnel that is not the domain's
	dropLease                    // a tunnel's request or answer that fits no tunnel
	dropLeaseQueue               // one that came while many others wait
	dropReportMemory             // a PATH_REPORT of this node for which the pool had no room
	dropParse                    // first of the parser's reasons (roce.Reason)
	numDrops         = dropParse + drop(roce.Version) + 1
)

var dropNames = func() [numDrops]string {
	n := [numDrops]string{
		dropVLAN: "vlan", dropSuperPacket: "super_packet", dropFlowTable: "flow_table_full", dropNoSocket: "no_socket",
		dropMessage: "message_malformed", dropOutside: "outside_domain", dropUnknownFlow: "unknown_flow", dropWrongPeer: "wrong_peer",
		dropWrongAddress: "wrong_address",
		dropFlowKind:     "flow_kind", dropNoProfile: "no_profile", dropNotOnPath: "not_on_path", dropOtherPeer: "other_peer",
		dropHelloRate: "hello_rate", dropReplay: "hello_replayed", dropReporter: "not_a_reporter", dropMailbox: "mailbox_full",
		dropTunnel: "foreign_tunnel", dropLease: "lease_unexpected", dropLeaseQueue: "lease_queue_full",
		dropUnsecured: "not_secured", dropReportMemory: "report_no_memory",
	}
	for r := roce.OK; r <= roce.Version; r++ {
		n[dropParse+drop(r)] = "roce_" + slug(r.String())
	}
	return n
}()

// slug makes a metric label of words.
func slug(words string) string {
	out := make([]byte, 0, len(words))
	for _, c := range []byte(words) {
		switch {
		case c >= 'A' && c <= 'Z':
			out = append(out, c+'a'-'A')
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			out = append(out, c)
		case len(out) > 0 && out[len(out)-1] != '_':
			out = append(out, '_')
		}
	}
	return string(out)
}
