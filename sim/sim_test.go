// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"reflect"
	"testing"
	"time"

	"crem.dev/crem/sim/endpoint"
	"crem.dev/crem/sim/world"
)

// wan is the path of SDR-RDMA's evaluation: 400 Gbit/s, 3,750 km.
func wan(loss float64) world.Link {
	return world.Link{Rate: 400e9, Delay: 12500 * time.Microsecond, Loss: world.Loss{Rate: loss}}
}

func run(t *testing.T, s Scenario) Result {
	t.Helper()
	r, err := Run(s)
	if err != nil {
		t.Fatal(err)
	}
	if r.Wrong != 0 {
		t.Fatalf("the receiver got %d packets that nobody sent", r.Wrong)
	}
	return r
}

var transports = map[string]endpoint.Config{
	"go-back-N": {Kind: endpoint.GoBackN},
	"SR RTO":    {Kind: endpoint.SelectiveRepeat},
	"SR NACK":   {Kind: endpoint.SelectiveRepeat, NACK: true},
	"MDS":       {Kind: endpoint.Coded, Code: endpoint.Code{K: 32, M: 8}},
	"XOR":       {Kind: endpoint.Coded, Code: endpoint.Code{K: 32, M: 8, XOR: true}},
}

// Without loss every transport takes the time to send and a round trip, and no packet is sent twice.
func TestLosslessIsIdeal(t *testing.T) {
	for name, c := range transports {
		r := run(t, Scenario{Link: wan(0), Transport: c, MessageOctets: 8<<20 + 1, Messages: 3, MTU: 4096})
		if !r.Done || r.Cost.Sent-r.Sender.Parity != r.Cost.Needed || r.Sender.Timeouts != 0 {
			t.Errorf("%s: %+v", name, r.Sender)
		}
		most := 1.001
		if c.Kind == endpoint.Coded {
			most = 1.003 // parity: 8 of 40 packets of 0.17 ms in 25.17 ms
		}
		for _, d := range r.Completions {
			if d < r.Ideal || r.OverIdeal(d) > most {
				t.Errorf("%s: a transfer took %v, the ideal is %v", name, d, r.Ideal)
			}
		}
	}
}

// The same scenario gives the same result, down to every counter; another seed gives another.
func TestSameSeedSameResult(t *testing.T) {
	for name, c := range transports {
		s := Scenario{Link: wan(1e-3), Transport: c, MessageOctets: 4 << 20, Messages: 4, MTU: 4096, Seed: 7}
		if c.Kind == endpoint.GoBackN {
			s.Protection = CREM()
		}
		a, b := run(t, s), run(t, s)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: two runs of one seed differ:\n%+v\n%+v", name, a, b)
		}
		s.Seed = 8
		if c := run(t, s); reflect.DeepEqual(a, c) {
			t.Errorf("%s: two seeds give the same", name)
		}
	}
}
