// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"os"
	"reflect"
	"testing"
	"time"

	"crem.dev/crem/sim/model"
)

// Without loss every stage takes what its transfer takes, and an all-reduce 2N-2 of them.
func TestRingWithoutLoss(t *testing.T) {
	for _, sites := range []int{2, 4, 8} {
		s := bare(transports["SR RTO"], 8*mib, 0, 2)
		r, err := RunRing(Ring{Scenario: s, Sites: sites})
		if err != nil || !r.Done || len(r.Completions) != 2 {
			t.Fatal(err, r.Error, r.Completions)
		}
		one := Scenario{Link: s.Link, Back: s.Back, Transport: s.Transport, MessageOctets: 8 * mib / int64(sites), Messages: 1, MTU: s.MTU}
		want := run(t, one).Completions[0] * time.Duration(2*sites-2)
		for _, d := range r.Completions {
			if d != want || r.OverIdeal(d) > 1.0001 {
				t.Errorf("%d sites: %v, expected %v; ideal %v", sites, d, want, r.Ideal)
			}
		}
	}
}

// With loss the mean lies between that of a chain of transfers and that of a barrier at each stage (sim/model), and a code gains over selective
// repeat what SDR-RDMA publishes for 4 and 8 sites: 3 to over 6 times at p99.9.
func TestLongRingOfSites(t *testing.T) {
	n := 30
	if os.Getenv("CREM_LONG") != "" {
		n = 300
	}
	const buffer, loss = 8 * mib, 1e-2
	for _, sites := range []int{4, 8} {
		mean := func(name string) (float64, Result) {
			r, err := RunRing(Ring{Scenario: bare(transports[name], buffer, loss, n), Sites: sites})
			if err != nil || !r.Done {
				t.Fatal(err, r.Error)
			}
			return r.Mean().Seconds(), r
		}
		repeat, r := mean("SR RTO")
		path := model.Path{Bandwidth: 400e9, RTT: 0.025, Loss: loss}
		transfer := model.SelectiveRepeat(path, model.Message{Octets: buffer / int64(sites), Packet: 4096}, 3*path.RTT)
		chain, barrier := model.Ring(transfer, sites)
		t.Logf("%d sites: selective repeat %.3f s, chain %.3f s, barrier %.3f s", sites, repeat, chain.Mean(), barrier.Mean())
		if repeat < 0.95*chain.Mean() || repeat > 1.05*barrier.Mean() {
			t.Errorf("%d sites: selective repeat takes %.3f s, between %.3f and %.3f s were expected", sites, repeat, chain.Mean(), barrier.Mean())
		}
		_, code := mean("MDS")
		gain := float64(r.Quantile(0.999)) / float64(code.Quantile(0.999))
		t.Logf("%d sites: gain of the code at p99.9: %.2f", sites, gain)
		if gain < 3 || gain > 12 {
			t.Errorf("%d sites: the code gains %.1f times at p99.9", sites, gain)
		}
	}
}

func TestRingSameSeedSameResult(t *testing.T) {
	s := Scenario{Link: wan(1e-3), Protection: CREM(), MessageOctets: 4 * mib, Messages: 2, MTU: 4096, Seed: 5}
	a, err := RunRing(Ring{Scenario: s, Sites: 3})
	b, _ := RunRing(Ring{Scenario: s, Sites: 3})
	if err != nil || !reflect.DeepEqual(a, b) || a.Wrong != 0 || len(a.Completions) != 2 {
		t.Errorf("%v\n%+v\n%+v", err, a, b)
	}
}
