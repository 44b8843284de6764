// SPDX-License-Identifier: Apache-2.0

package ecn

// DropReason is why a packet or a CNP was not used, or a CNP not sent.
type DropReason uint8

// Reasons.
const (
	DropNone       DropReason = iota
	DropMalformed             // lengths or fields that contradict each other
	DropTooBig                // larger than the tunnel's path
	DropNotOurs               // outer addresses are not the tunnel's
	DropChecksum              // of an outer IPv4 header
	DropFragment              // an outer fragment: nothing of ours fragments
	DropProtocol              // no IP packet in the outer one
	DropNotECT                // congestion was met, and the inner packet cannot say so
	DropForeign               // CNP from outside the domain's nodes
	DropOld                   // CNP with a timestamp that is too old
	DropFuture                // CNP with a timestamp or sequence of the future
	DropReplayed              // CNP with a sequence that was seen, or is behind the window
	DropContradict            // CNP that what the ingress sees of the queue contradicts
	DropLimit                 // over the limit of a flow
	DropTotal                 // over the limit in all
	DropTable                 // no room for another sender or flow
	DropEcho                  // CNP for a mark of this node's own, which was acted upon
	DropReasons               // number of reasons
)

var dropNames = [DropReasons]string{
	"none", "malformed", "too_big", "not_ours", "checksum", "fragment", "protocol", "not_ect", "foreign", "old", "future", "replayed",
	"contradicted", "flow_limit", "total_limit", "table_full", "echo",
}

// String returns the reason as metrics name it.
func (r DropReason) String() string {
	if r >= DropReasons {
		return "unknown"
	}
	return dropNames[r]
}

// TunnelStats is the counters of a tunnel, in packets.
type TunnelStats struct {
	Encapsulated, Decapsulated uint64
	Arrived                    [4][4]uint64 // at the egress, by inner and outer Codepoint, dropped ones too
	Light                      uint64       // early warnings consumed
	Drops                      [DropReasons]uint64
}

func (t *Tunnel) drop(why DropReason) DropReason {
	t.stats.Drops[why]++
	return why
}
