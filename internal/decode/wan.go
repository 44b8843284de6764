// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"fmt"

	"crem.dev/crem/agent/ecn"
)

// wan adds the fields of a message about tunnels between sites (docs/wan-ecn.md); false for every other message.
func (l *line) wan(payload []byte) (is bool, err error) {
	switch {
	case ecn.IsCNP(payload):
		l.add("type", "CNP")
		x, err := ecn.ParseCNP(payload)
		if err != nil {
			return true, err
		}
		l.add("level", x.Level.String())
		l.add("from", x.Flow.Src.String())
		l.add("to", x.Flow.Dst.String())
		l.add("qpn", fmt.Sprintf("0x%06x", x.Flow.Label))
		l.add("node", fmt.Sprintf("0x%08x", x.Node))
		l.add("sequence", x.Sequence)
	case ecn.IsLease(payload):
		x, err := ecn.ParseLease(payload)
		switch {
		case err != nil:
			l.add("type", "LEASE")
			return true, err
		case x.Answer:
			l.add("type", "LEASE_ANSWER")
			l.add("for", x.For.String())
		default:
			l.add("type", "LEASE_REQUEST")
		}
		l.add("nonce", fmt.Sprintf("0x%016x", x.Nonce))
	case ecn.IsReadings(payload):
		l.add("type", "READINGS")
		x, err := ecn.ParseReadings(payload)
		if err != nil {
			return true, err
		}
		packets := uint64(0)
		for _, r := range x.List {
			packets += uint64(r.Packets)
		}
		l.add("period", x.Period)
		l.add("flows", len(x.List))
		l.add("packets", packets)
	default:
		return false, nil
	}
	return true, nil
}
