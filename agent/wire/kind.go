// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"

	"crem.dev/crem/agent/roce"
)

// FlowKind says what numbers the packets of a flow: a transport and one of its PSN spaces (Section 4.4). The spaces of a queue pair never share a
// block. All but the first are for private use.
type FlowKind uint8

// Flow kinds.
const (
	KindRoCEv2         FlowKind = 1   // requests
	KindRoCEv2Response FlowKind = 192 // READ responses and ATOMIC acknowledgements, numbered by the other side's requests
	KindVeRoCE         FlowKind = 193 // requests
	KindVeRoCEResponse FlowKind = 194
	KindMRC            FlowKind = 195
)

// kinds has every flow kind that is defined.
var kinds = [...]struct {
	kind      FlowKind
	transport roce.Transport
	space     roce.Space
	name      string
}{
	{KindRoCEv2, roce.RoCEv2, roce.Request, "RoCEv2"},
	{KindRoCEv2Response, roce.RoCEv2, roce.Response, "RoCEv2 response"},
	{KindVeRoCE, roce.VeRoCE, roce.Request, "veRoCE"},
	{KindVeRoCEResponse, roce.VeRoCE, roce.Response, "veRoCE response"},
	{KindMRC, roce.MRC, roce.Request, "MRC"},
}

// Kinds returns every flow kind that is defined.
func Kinds() (all [len(kinds)]FlowKind) {
	for i := range kinds {
		all[i] = kinds[i].kind
	}
	return all
}

// KindOf returns the flow kind of a PSN space of a transport, 0 if it has none: MRC has no responses.
func KindOf(t roce.Transport, s roce.Space) FlowKind {
	for i := range kinds {
		if k := &kinds[i]; k.transport == t && k.space == s {
			return k.kind
		}
	}
	return 0
}

// Space returns the transport and the PSN space of a flow kind, false for one that is not defined.
func (k FlowKind) Space() (roce.Transport, roce.Space, bool) {
	for i := range kinds {
		if x := &kinds[i]; x.kind == k {
			return x.transport, x.space, true
		}
	}
	return roce.RoCEv2, roce.Request, false
}

// String returns the kind in words.
func (k FlowKind) String() string {
	for i := range kinds {
		if kinds[i].kind == k {
			return kinds[i].name
		}
	}
	return fmt.Sprintf("kind %d", uint8(k))
}
