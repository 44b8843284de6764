// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"crem.dev/crem/agent/wire"
	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/render"
)

var update = flag.Bool("update", false, "write the golden files anew")

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// long is the setting of the figures: 400 Gbit/s over 25 ms.
func long(message int64, loss float64) Input {
	return Input{RTT: 25 * time.Millisecond, Bandwidth: 400e9, Message: message, Loss: loss}
}

func normal(t testing.TB, in Input) Input {
	t.Helper()
	in, err := in.Normal()
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// examples are links that planners ask about.
func examples() map[string]Input {
	return map[string]Input{
		"training":     {RTT: 25 * time.Millisecond, Bandwidth: 400e9, Loss: 1e-4, Message: 128 * mib, LinkMTU: 9000, Site: "west"},
		"cache":        {RTT: 30 * time.Millisecond, Bandwidth: 100e9, Loss: 1e-3, Message: 64 * mib, Flows: 16, AckTimeout: 12, Window: 4 * mib, LinkMTU: 4200},
		"storage":      {RTT: 10 * time.Millisecond, Bandwidth: 25e9, Loss: 2e-3, Burst: 4, Message: 1 * mib, LinkMTU: 1500, Tunnel: 24, IPv6: true, Flows: 8, AckTimeout: 20},
		"clean":        {RTT: 5 * time.Millisecond, Bandwidth: 100e9, Loss: 1e-8, Message: 1 * mib, Transport: SelectiveRepeat, LinkMTU: 9000},
		"bad day":      {RTT: 8 * time.Millisecond, Bandwidth: 100e9, Loss: 0.12, Message: 256 * mib, Transport: SelectiveRepeatTime},
		"large":        {RTT: 25 * time.Millisecond, Bandwidth: 400e9, Loss: 1e-6, Message: 8 * gib, Transport: SelectiveRepeat, Flows: 4},
		"slow and bad": {RTT: 20 * time.Millisecond, Bandwidth: 100e6, Loss: 3e-2, Message: 4 * kib},
	}
}

// TestGoldenPlans: what a planner reads.
func TestGoldenPlans(t *testing.T) {
	for name, in := range examples() {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := Make(normal(t, in)).Text(&b); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), b.String()); diff != "" {
				t.Errorf("%s (-want +got; -update writes it anew)\n%s", path, diff)
			}
		})
	}
}

const domain = `apiVersion: crem.dev/v1alpha1
kind: CREMDomain
metadata: {name: backbone}
spec:
  port: 52000
  site: east
  ipsec: {mode: BoundaryFiltered}
  sites:
  - {name: east, cidrs: [10.1.0.0/16]}
  - {name: west, cidrs: [10.2.0.0/16]}
`

// TestProfileIsAccepted: every recommended profile passes the strict decoder, is the profile of the plan, and is rendered for a node.
func TestProfileIsAccepted(t *testing.T) {
	inputs := examples()
	for _, rtt := range []time.Duration{50 * time.Microsecond, 100 * time.Millisecond, 2 * time.Second} {
		for _, loss := range []float64{0, 1e-9, 0.05, mostLoss} {
			for _, message := range []int64{1, 5000, 1 << 40} {
				for _, transport := range Transports {
					in := Input{RTT: rtt, Bandwidth: 100e9, Loss: loss, Message: message, Transport: transport, Site: "west"}
					if loss == 0.05 {
						in.Burst = 8
					}
					inputs[fmt.Sprint(in)] = in
				}
			}
		}
	}
	for name, in := range inputs {
		in = normal(t, in)
		in.Site = "west"
		c := in.choose()
		profile := in.profile(c)
		text := yaml(&profile)
		objs, err := render.Decode([]render.File{{Name: "plan.yaml", Data: []byte(domain + "---\n" + text)}})
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, text)
			continue
		}
		if diff := cmp.Diff(profile.Spec, objs.Profiles[0].Spec); diff != "" {
			t.Errorf("%s: the YAML is another profile (-plan +YAML)\n%s", name, diff)
		}
		node := render.Node(objs, render.NodeFacts{Name: "gw1", Standalone: true})
		if len(node.Problems) > 0 || len(node.Spec.Profiles) != 1 || len(node.Spec.Domains[0].Rules) != 1 {
			t.Errorf("%s: rendered as %+v", name, node)
		}
		if m := int32(c.crem.M); m > profile.Spec.MaxRepairSymbols || float64(m) > 0 && c.overhead > mustDecimal(t, profile.Spec.MaxRepairRatio) && profile.Spec.MaxRepairRatio != "1" {
			t.Errorf("%s: m = %d, %.2f of the source, do not fit the profile\n%s", name, m, c.overhead, text)
		}
	}
}

func mustDecimal(t *testing.T, s string) float64 {
	t.Helper()
	f, ok := render.Decimal(s)
	if !ok {
		t.Fatalf("%q is no decimal", s)
	}
	return f
}

// TestFigures: what the plan promises at 400 Gbit/s, 25 ms and 128 MiB under go-back-N, where acknowledgements are never lost, as in the
// published comparison.
func TestFigures(t *testing.T) {
	for _, row := range []struct {
		message          int64
		loss, over, sent float64
	}{
		{128 * mib, 1e-5, 1.10, 0.04},
		{128 * mib, 1e-4, 1.10, 0.07},
		{128 * mib, 1e-3, 1.10, 0.10},
		{128 * mib, 1e-2, 1.25, 0.20},
		{8 * gib, 1e-6, 1.03, 0.04},
	} {
		in := long(row.message, row.loss)
		in.LosslessBack = true
		p := Make(normal(t, in))
		if over := p.crem().P999 / p.Lossless; over > row.over {
			t.Errorf("%s: p99.9 %.3f over lossless, want %.2f", p.Title(), over, row.over)
		}
		if p.crem().Overhead > row.sent {
			t.Errorf("%s: %.3f sent ahead, want %.2f", p.Title(), p.crem().Overhead, row.sent)
		}
	}
}

// TestBestOfTheMap: in every cell CREM is within 3 % of the best, or the plan names the other and says why.
func TestBestOfTheMap(t *testing.T) {
	cells, others := 0, 0
	for _, rtt := range []time.Duration{time.Millisecond, 25 * time.Millisecond} {
		for _, loss := range []float64{1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 5e-2} {
			for _, message := range []int64{128 * kib, 128 * mib, 8 * gib} {
				for _, transport := range []Transport{GoBackN, SelectiveRepeat} {
					in := long(message, loss)
					in.RTT, in.Transport = rtt, transport
					p := Make(normal(t, in))
					cells++
					best := p.best()
					if best.Key == keyCREM {
						for _, m := range p.Mechanisms {
							if m.P999*(1+near) < p.crem().P999 {
								t.Errorf("%s: %s has %g, CREM %g", p.Title(), m.Name, m.P999, p.crem().P999)
							}
						}
						continue
					}
					others++
					if f := p.Findings[0]; f.Topic != "best" || !strings.Contains(strings.ToLower(f.Says), strings.ToLower(best.Name)) || !strings.Contains(f.Says, "because") {
						t.Errorf("%s: %s wins, and the plan says %q", p.Title(), best.Name, f.Says)
					}
				}
			}
		}
	}
	if others == 0 || others > cells/4 {
		t.Errorf("CREM loses %d of %d cells", others, cells)
	}
}

// TestMTUArithmetic: the sum in the sentence is the needed MTU, which is the one that the data path refuses below.
func TestMTUArithmetic(t *testing.T) {
	number := regexp.MustCompile(`[0-9]+`)
	for name, in := range examples() {
		in = normal(t, in)
		p := Make(in)
		sum := 0
		for _, s := range number.FindAllString(p.arithmetic(), -1) {
			n, _ := strconv.Atoi(s)
			sum += n
		}
		k := int(p.Profile.Spec.K)
		if want := wire.NeededMTU(in.RDMAMTU, k, in.IPv6) + in.Tunnel; sum != want || sum != in.neededMTU(in.RDMAMTU, k) {
			t.Errorf("%s: %s is %d, want %d", name, p.arithmetic(), sum, want)
		}
		if in.LinkMTU > 0 && in.packetMTU(in.RDMAMTU) > in.LinkMTU {
			t.Errorf("%s: an RDMA MTU of %d does not fit %d even without CREM", name, in.RDMAMTU, in.LinkMTU)
		}
	}
	if in := normal(t, Input{RTT: time.Millisecond, Bandwidth: 1e9, Message: 1, LinkMTU: 4200}); in.RDMAMTU != 4096 {
		t.Errorf("%d", in.RDMAMTU)
	}
	if in := normal(t, Input{RTT: time.Millisecond, Bandwidth: 1e9, Message: 1, LinkMTU: 4200, IPv6: true}); in.RDMAMTU != 2048 {
		t.Errorf("IPv6: %d", in.RDMAMTU)
	}
}

// TestNormalRefuses: one sentence that says what to write.
func TestNormalRefuses(t *testing.T) {
	good := long(mib, 1e-4)
	for want, change := range map[string]func(*Input){
		"rtt 3s: write the round-trip time of the link, from 10us to 2s, for instance 25ms":                                 func(in *Input) { in.RTT = 3 * time.Second },
		"bandwidth 5: write the rate of the link in bits per second, from 1M to 10T, for instance 100G":                     func(in *Input) { in.Bandwidth = 5 },
		"loss 1: write the share of packets that the link loses, from 0 to 0.3, for instance 1e-4 or 0.01%":                 func(in *Input) { in.Loss = 1 },
		"loss NaN: write the share of packets that the link loses, from 0 to 0.3, for instance 1e-4 or 0.01%":               func(in *Input) { in.Loss = math.NaN() },
		"burst 0.5: write the mean number of packets lost in a row, from 1 to 64":                                           func(in *Input) { in.Burst = 0.5 },
		"message 0: write the size of one message, from 1 to 1024Gi, for instance 128Mi":                                    func(in *Input) { in.Message = 0 },
		"transport \"tcp\": write go-back-n, selective-repeat, selective-repeat-timer, mrc or veroce":                       func(in *Input) { in.Transport = "tcp" },
		"flows -1: write the number of queue pairs that share the link, from 1 to 65536":                                    func(in *Input) { in.Flows = -1 },
		"tunnel 1000: write the octets that a tunnel adds to each packet, from 0 to 512, for instance 24 for GRE over IPv4": func(in *Input) { in.Tunnel = 1000 },
		"mtu 100: write the IP MTU of the link, from 576 to 65535, for instance 9000":                                       func(in *Input) { in.LinkMTU = 100 },
		"rdma-mtu 1500: write 256, 512, 1024, 2048 or 4096":                                                                 func(in *Input) { in.RDMAMTU = 1500 },
		"ack-timeout 40: write the exponent that the NIC is given (NCCL_IB_TIMEOUT, qp_attr.timeout), from 1 to 31":         func(in *Input) { in.AckTimeout = 40 },
		"memory 4096: write what crem-agent run --memory is given, from 16Mi to 1024Gi":                                     func(in *Input) { in.Memory = 4096 },
		"window -1: write the octets that one queue pair keeps in flight at most, up to 1024Gi, for instance 64Mi":          func(in *Input) { in.Window = -1 },
	} {
		in := good
		change(&in)
		if _, err := in.Normal(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestFindingsThatAct: what must be done is said where it must be, and nowhere else.
func TestFindingsThatAct(t *testing.T) {
	good := Input{RTT: 10 * time.Millisecond, Bandwidth: 10e9, Loss: 1e-4, Message: 64 * mib, LinkMTU: 9000, AckTimeout: 14, Window: 64 * mib}
	for _, tc := range []struct {
		topic  string
		change func(*Input)
		says   string
	}{
		{"", func(*Input) {}, ""},
		{"timers", func(in *Input) { in.AckTimeout = 10 }, "4.19 ms"},
		{"timers", func(in *Input) { in.AckTimeout = 0 }, "Set the local ACK timeout to 14"},
		{"window", func(in *Input) { in.Window = 1 * mib }, "use 12 queue pairs"},
		{"window", func(in *Input) { in.Transport, in.Bandwidth, in.Window = MRC, 400e9, 0 }, "use at least 4 queue pairs"},
		{"MTU", func(in *Input) { in.LinkMTU, in.RDMAMTU = 4100, 4096 }, "or set the RDMA MTU to 2048"},
		{"MTU", func(in *Input) { in.LinkMTU = 0 }, "set the link and every uplink to"},
		{"memory", func(in *Input) { in.Bandwidth, in.Window = 400e9, 0 }, "a packet worker needs"},
		{"circuit breaker", func(in *Input) { in.Loss = 0.15 }, "mend the link"},
	} {
		in := good
		tc.change(&in)
		p := Make(normal(t, in))
		found := tc.topic == ""
		for _, f := range p.Findings {
			switch {
			case f.Level != Act:
			case f.Topic == tc.topic && strings.Contains(f.Says, tc.says):
				found = true
			case tc.topic == "":
				t.Errorf("nothing is wrong, but: %s: %s", f.Topic, f.Says)
			}
		}
		if !found {
			t.Errorf("%s: no %q in %+v", tc.topic, tc.says, p.Findings)
		}
		for _, f := range p.Findings {
			if !strings.HasSuffix(f.Says, ".") || f.Says[0] >= 'a' && f.Says[0] <= 'z' {
				t.Errorf("%s: %q is no sentence", f.Topic, f.Says)
			}
		}
	}
}

// TestTransportDecidesDelivery: only a receiver that answers each gap needs order.
func TestTransportDecidesDelivery(t *testing.T) {
	for transport, want := range map[Transport]v1alpha1.Delivery{
		GoBackN: v1alpha1.DeliveryInOrder, SelectiveRepeat: v1alpha1.DeliveryImmediate, SelectiveRepeatTime: v1alpha1.DeliveryImmediate,
		MRC: v1alpha1.DeliveryImmediate, VeRoCE: v1alpha1.DeliveryImmediate,
	} {
		in := long(mib, 1e-3)
		in.Transport = transport
		if got := Make(normal(t, in)).Profile.Spec.Delivery; got != want {
			t.Errorf("%s: %s", transport, got)
		}
	}
}

// TestSimulationAgrees: the real machines with the recommended profile complete messages as the analysis says, and the same each time.
func TestSimulationAgrees(t *testing.T) {
	for _, in := range []Input{
		{RTT: 10 * time.Millisecond, Bandwidth: 10e9, Loss: 1e-3, Message: 4 * mib},
		{RTT: 10 * time.Millisecond, Bandwidth: 10e9, Loss: 1e-2, Message: 4 * mib, Transport: SelectiveRepeat},
		{RTT: 20 * time.Millisecond, Bandwidth: 1e9, Loss: 1e-2, Message: 1 * mib, LinkMTU: 1500},
		{RTT: 10 * time.Millisecond, Bandwidth: 10e9, Loss: 1e-3, Message: 4 * mib, Transport: MRC, LosslessBack: true},
		{RTT: 25 * time.Millisecond, Bandwidth: 100e9, Loss: 1e-3, Message: 16 * mib, Transport: MRC, Window: 8 * mib, LosslessBack: true},
		{RTT: 10 * time.Millisecond, Bandwidth: 10e9, Loss: 1e-2, Message: 4 * mib, Transport: VeRoCE, LosslessBack: true},
	} {
		in = normal(t, in)
		run := func() *Plan {
			p := Make(in)
			s, err := p.Simulate(150)
			if err != nil {
				t.Fatal(err)
			}
			for s.Step() {
				continue
			}
			s.Finish()
			return p
		}
		p := run()
		m := p.Mechanisms[1]
		if m.Key != keySimulated || m.Messages != 150 {
			t.Fatalf("%+v", m)
		}
		if off := m.Mean/p.crem().Mean - 1; math.Abs(off) > agree {
			t.Errorf("%s: simulated mean %g, analysis %g", p.Title(), m.Mean, p.crem().Mean)
		}
		if again := run(); again.Mechanisms[1] != m {
			t.Errorf("%s: another result: %+v and %+v", p.Title(), m, again.Mechanisms[1])
		}
	}
}

// TestSimulationEndedEarly: what there is is given, and said to be a part.
func TestSimulationEndedEarly(t *testing.T) {
	p := Make(normal(t, Input{RTT: 10 * time.Millisecond, Bandwidth: 10e9, Loss: 1e-3, Message: 4 * mib}))
	s, err := p.Simulate(100000)
	if err != nil {
		t.Fatal(err)
	}
	s.Finish()
	if p.Mechanisms[1].Key == keySimulated {
		t.Error("a mechanism without a message")
	}
	for done := 0; done < 10; done, _ = s.Progress() {
		s.Step()
	}
	s.Finish()
	last := p.Findings[len(p.Findings)-1]
	if m := p.Mechanisms[1]; m.Key != keySimulated || m.Messages < 1 || !strings.Contains(last.Says, "was ended after") {
		t.Errorf("%+v, %+v", m, last)
	}
}
