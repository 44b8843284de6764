// SPDX-License-Identifier: Apache-2.0

package rc

import "time"

// Completion is one completed message.
type Completion struct {
	Number    uint64
	Op        Op
	Size      int
	Posted    time.Duration
	Completed time.Duration
	Corrupt   int // octets that are wrong in this end's memory (READ)
}

// RequesterStats are totals of a requester. Sent over Needed is the price of go-back-N.
type RequesterStats struct {
	Posted          uint64 `json:"posted"`
	Completed       uint64 `json:"completed"`
	CompletedOctets uint64 `json:"completed_octets"`
	AckedOctets     uint64 `json:"acked_octets"` // of messages, acknowledged or (READ) placed: Completed at the grain of packets
	Sent            uint64 `json:"sent"`         // request packets
	Needed          uint64 `json:"needed"`       // of Sent: those sent for the first time
	SentOctets      uint64 `json:"sent_octets"`
	Retransmitted   uint64 `json:"retransmitted"`
	Acks            uint64 `json:"acks"`
	NAKs            uint64 `json:"naks"`         // PSN sequence errors received
	Implied         uint64 `json:"implied_naks"` // gaps in READ responses
	Timeouts        uint64 `json:"timeouts"`
	Responses       uint64 `json:"responses"`      // READ responses taken
	Stale           uint64 `json:"stale"`          // answers that told nothing new
	CorruptOctets   uint64 `json:"corrupt_octets"` // READ data that is not what the other end holds
	CorruptMessages uint64 `json:"corrupt_messages"`
	Err             string `json:"error,omitempty"` // why the connection failed
}

// ResponderStats are totals of a responder.
type ResponderStats struct {
	Received        uint64 `json:"received"` // request packets
	Executed        uint64 `json:"executed"` // of them: expected and taken
	Messages        uint64 `json:"messages"` // completed, READs included
	WrittenOctets   uint64 `json:"written_octets"`
	OutOfSequence   uint64 `json:"out_of_sequence"`
	Duplicates      uint64 `json:"duplicates"`
	NAKsSent        uint64 `json:"naks_sent"`
	AcksSent        uint64 `json:"acks_sent"`
	ResponsesSent   uint64 `json:"responses_sent"`
	ResponsesNeeded uint64 `json:"responses_needed"` // of ResponsesSent: those sent for the first time
	ResponseOctets  uint64 `json:"response_octets"`
	CorruptOctets   uint64 `json:"corrupt_octets"`
	CorruptMessages uint64 `json:"corrupt_messages"`
	ProtocolErrors  uint64 `json:"protocol_errors"`
	Fault           string `json:"fault,omitempty"` // the first wrong message or request in words
}

// Stats are totals of a queue pair.
type Stats struct {
	Requester RequesterStats `json:"requester"`
	Responder ResponderStats `json:"responder"`
	BadICRC   uint64         `json:"bad_icrc"`  // packets dropped as a NIC does, silently
	Strangers uint64         `json:"strangers"` // packets of another queue pair or unknown opcode
	CE        uint64         `json:"ce"`        // packets that were marked
	CNP       uint64         `json:"cnp"`
}
