// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"crem.dev/crem/sim/endpoint"
	"crem.dev/crem/sim/model"
	"crem.dev/crem/sim/world"
)

// The analysis of MRC and veRoCE (sim/model) and their machines agree in the mean within 5 %, and what chance does.
func TestLongWindowsAgreeWithTheModel(t *testing.T) {
	const timeout = 67108864 * time.Nanosecond
	for _, c := range []struct {
		kind     endpoint.Kind
		rate     int64
		rtt      time.Duration
		octets   int64
		loss     float64
		messages int
		short    bool // not only with CREM_LONG
	}{
		{endpoint.MRC, 400e9, 25 * time.Millisecond, 8 * mib, 1e-3, 300, true},
		{endpoint.MRC, 400e9, 25 * time.Millisecond, 128 * mib, 1e-4, 200, false},
		{endpoint.MRC, 400e9, 25 * time.Millisecond, 128 * mib, 1e-2, 60, true},
		{endpoint.MRC, 400e9, 25 * time.Millisecond, gib, 1e-5, 40, false},
		{endpoint.MRC, 400e9, 25 * time.Millisecond, gib, 1e-3, 20, false},
		{endpoint.MRC, 400e9, 25 * time.Millisecond, gib, 1e-2, 20, false},
		{endpoint.MRC, 100e9, time.Millisecond, 128 * mib, 1e-3, 60, false},
		{endpoint.VeRoCE, 400e9, 25 * time.Millisecond, 8 * mib, 1e-3, 300, true},
		{endpoint.VeRoCE, 400e9, 25 * time.Millisecond, 128 * mib, 1e-4, 200, false},
		{endpoint.VeRoCE, 400e9, 25 * time.Millisecond, 128 * mib, 1e-2, 60, false},
		{endpoint.VeRoCE, 400e9, 25 * time.Millisecond, gib, 1e-3, 20, false},
		{endpoint.VeRoCE, 100e9, time.Millisecond, 128 * mib, 1e-3, 60, true},
		{endpoint.VeRoCE, 100e9, time.Millisecond, 128 * mib, 1e-2, 60, false},
		{endpoint.VeRoCE, 10e9, time.Millisecond, 64 * mib, 5e-2, 60, false},
	} {
		if !c.short && os.Getenv("CREM_LONG") == "" {
			continue
		}
		link := world.Link{Rate: c.rate, Delay: c.rtt / 2, Framing: 38, Loss: world.Loss{Rate: c.loss}}
		r := run(t, Scenario{
			Link: link, Transport: endpoint.Config{Kind: c.kind, Timeout: timeout, Retries: -1},
			MessageOctets: c.octets, Messages: c.messages, Warmup: 2, MTU: 4096, Seed: 1,
		})
		p := model.Path{Bandwidth: float64(c.rate), RTT: c.rtt.Seconds(), Loss: c.loss, Back: c.loss}
		m := model.Message{Octets: c.octets, Packet: 4096, Head: 38 + 20 + 8 + 16}
		d := model.MRC(p, m, timeout.Seconds(), math.Inf(1))
		if c.kind == endpoint.VeRoCE {
			d = model.VeRoCE(p, m, timeout.Seconds(), math.Inf(1))
		}
		spread := 0.0
		for _, x := range r.Completions {
			spread += math.Pow((x - r.Mean()).Seconds(), 2)
		}
		chance := 3 * math.Sqrt(spread) / float64(len(r.Completions))
		got, want := r.Mean().Seconds(), d.Mean()
		name := fmt.Sprintf("%v, %d MiB, %g Gbit/s, %v, loss %g", c.kind, c.octets/mib, float64(c.rate)/1e9, c.rtt, c.loss)
		t.Logf("%s: mean %.5g s, by the model %.5g; p90 %.5g, %.5g; over the ideal %.2f", name, got, want, r.Quantile(0.9).Seconds(), model.Quantile(d, 0.9), r.OverIdeal(r.Mean()))
		if math.Abs(got-want) > 0.05*want+chance {
			t.Errorf("%s: mean %.5g s, by the model %.5g", name, got, want)
		}
	}
}
