// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"strings"
	"testing"

	"crem.dev/crem/agent/roce"
)

// Section 4.4: the numbers that both ends write for each transport and space, which no other release may change.
func TestSection4_4_NumbersOfKinds(t *testing.T) {
	numbers := map[uint8]struct {
		transport roce.Transport
		space     roce.Space
		name      string
	}{
		1:   {roce.RoCEv2, roce.Request, "RoCEv2"},
		192: {roce.RoCEv2, roce.Response, "RoCEv2 response"},
		193: {roce.VeRoCE, roce.Request, "veRoCE"},
		194: {roce.VeRoCE, roce.Response, "veRoCE response"},
		195: {roce.MRC, roce.Request, "MRC"},
	}
	for number := range 256 {
		kind := FlowKind(number)
		want, defined := numbers[uint8(number)]
		transport, space, ok := kind.Space()
		if ok != defined || ok && (transport != want.transport || space != want.space || kind.String() != want.name) {
			t.Errorf("kind %d is %v: %v %v, %v", number, kind, transport, space, ok)
		}
		if back := KindOf(want.transport, want.space); defined && back != kind {
			t.Errorf("%v %v has kind %d, want %d", want.transport, want.space, uint8(back), number)
		}
		if !defined && !strings.HasPrefix(kind.String(), "kind ") {
			t.Errorf("kind %d is called %v", number, kind)
		}
	}
	if kind := KindOf(roce.MRC, roce.Response); kind != 0 {
		t.Errorf("responses of MRC have kind %v", kind)
	}
	for _, kind := range Kinds() {
		if _, defined := numbers[uint8(kind)]; !defined {
			t.Errorf("%v is among the kinds", kind)
		}
		delete(numbers, uint8(kind))
	}
	if len(numbers) > 0 {
		t.Errorf("not among the kinds: %v", numbers)
	}
}
