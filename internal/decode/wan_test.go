// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/ecn"
)

// WAN ECN: messages about tunnels are decoded field by field, and what is malformed is said to be.
func TestWANECN_MessagesAreDecoded(t *testing.T) {
	cnp := ecn.CNP{
		Level: ecn.LevelSevere, Flow: ecn.Flow{Src: netip.MustParseAddr("10.1.0.5"), Dst: netip.MustParseAddr("10.2.0.6"), Label: 0x77}, Node: 9, Sequence: 12,
	}
	request, answer := ecn.Lease{Nonce: 5}, ecn.Lease{Answer: true, Nonce: 5, For: 3500 * time.Millisecond}
	readings := ecn.Readings{Period: 7, List: []ecn.Reading{{Flow: cnp.Flow, Packets: 2}, {Flow: cnp.Flow, Packets: 3}}}
	for name, c := range map[string]struct {
		payload []byte
		want    line
	}{
		"CNP": {cnp.Append(nil), line{
			{"type", "CNP"}, {"level", "severe"}, {"from", "10.1.0.5"}, {"to", "10.2.0.6"}, {"qpn", "0x000077"}, {"node", "0x00000009"}, {"sequence", uint64(12)},
		}},
		"readings": {readings.Append(nil), line{{"type", "READINGS"}, {"period", uint32(7)}, {"flows", 2}, {"packets", uint64(5)}}},
		"request":  {request.Append(nil, 4000), line{{"type", "LEASE_REQUEST"}, {"nonce", "0x0000000000000005"}}},
		"answer":   {answer.Append(nil, 0), line{{"type", "LEASE_ANSWER"}, {"for", "3.5s"}, {"nonce", "0x0000000000000005"}}},
	} {
		var got line
		is, err := got.wan(c.payload)
		if !is || err != nil || len(got) != len(c.want) {
			t.Fatalf("%s: %v, %v, %v", name, is, err, got)
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: %v, want %v", name, got[i], c.want[i])
			}
		}
		if is, err := new(line).wan(c.payload[:len(c.payload)-1]); !is || err == nil {
			t.Errorf("%s, cut: %v, %v", name, is, err)
		}
	}
	if is, _ := new(line).wan([]byte{0x12, 0, 0, 4}); is {
		t.Error("HELLO is taken for a message about tunnels")
	}
}
