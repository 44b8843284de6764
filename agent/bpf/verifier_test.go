// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"
)

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads programs into the kernel")
	}
}

func testLoad(t testing.TB, c Config) *Objects {
	t.Helper()
	needRoot(t)
	o, err := Load(c)
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) {
		t.Fatalf("the verifier refuses:\n%+v", verifier)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

// The verifier takes every program, for small and large sizes and for any number of workers.
func TestVerifierTakesEveryProgram(t *testing.T) {
	for _, c := range []Config{
		{Workers: 1, SlotOctets: 1514, RingSlots: 1, MaxFlows: 1, MaxSeen: 1},
		{Workers: 2, SlotOctets: 4214, RingSlots: 64},
		{Workers: 3, SlotOctets: 9014, RingSlots: 64},
		{Workers: 1, SlotOctets: 64, RingSlots: 2},
		{Workers: 1, SlotOctets: 65536, RingSlots: 2},
	} {
		o := testLoad(t, c)
		for _, p := range []*ebpf.Program{o.kernel.CremIngress, o.kernel.CremBare, o.kernel.CremEgress} {
			info, err := p.Info()
			if err != nil {
				t.Fatal(err)
			}
			n, _ := info.VerifiedInstructions()
			t.Logf("%+v: %s: %d instructions verified", c, info.Name, n)
		}
	}
}
