// SPDX-License-Identifier: Apache-2.0

package bpf

import "crem.dev/crem/agent/packet"

// SetTransports says what the ingress program recognises beside RoCEv2. It acts on the next packet; flows of a transport that is not recognised
// any more pass without a copy.
func (o *Objects) SetTransports(r packet.Recognised) error {
	t := cremTransports{VerocePort: r.VeRoCEPort}
	if r.MRC {
		t.Mrc = 1
	}
	if err := o.kernel.CremTransports.Put(uint32(0), &t); err != nil {
		return explain(err, "set the transports")
	}
	o.wanted.transports = t
	return nil
}
