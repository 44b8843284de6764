// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/engine"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/render"
)

func spec() *v1alpha1.CREMNodeSpec {
	return &v1alpha1.CREMNodeSpec{
		Domains: []v1alpha1.NodeDomain{{
			Name: "backbone", Port: 52000, Site: "east", IPsec: v1alpha1.IPsec{Mode: v1alpha1.IPsecRequired},
			Sites: []v1alpha1.NodeSite{
				{Name: "east", CIDRs: []v1alpha1.NodePrefix{"10.1.0.0/16", "fd00:1::/32"}, Gateways: []v1alpha1.NodeAddress{"192.0.2.1", "2001:db8::1"}},
				{Name: "west", CIDRs: []v1alpha1.NodePrefix{"10.2.0.0/16"}},
			},
			Reporters: []v1alpha1.NodePrefix{"10.255.0.0/24"}, Reporter: v1alpha1.ReporterOwnDrops, Uplinks: []v1alpha1.InterfaceName{"wan0"}, MaxRepairBitsPerSecond: 1e9,
			Transports: &v1alpha1.Transports{
				VeRoCE: &v1alpha1.VeRoCE{Port: to[int32](4795), RetransmissionBit: to[v1alpha1.RetransmissionBit](6), SACKOpcode: to[v1alpha1.AcknowledgementOpcode](0x18),
					ResponseACKOpcode: to[v1alpha1.AcknowledgementOpcode](0x19), ResponseSACKOpcode: to[v1alpha1.AcknowledgementOpcode](0xff)},
				MRC: &v1alpha1.MRC{RetransmissionBit: to[v1alpha1.RetransmissionBit](0)},
			},
			WAN: &v1alpha1.NodeWAN{Mode: v1alpha1.WANCompatibility, Sites: []v1alpha1.SiteName{"west"}, PathMTU: 4300, MinBitsPerSecond: 8e6, Queue: &v1alpha1.NodeWANQueue{EarlyOctets: 1 << 18, SevereOctets: 1 << 20}, Measurement: v1alpha1.WANMeasurementAlternateMarking},
			Rules: []v1alpha1.NodeRule{
				{Profile: "special", Source: v1alpha1.SourceCIDRs, CIDRs: []v1alpha1.NodePrefix{"10.1.8.0/24"}, DestinationSites: []v1alpha1.SiteName{"west"}},
				{Profile: "plain", Source: v1alpha1.SourceAny},
			},
		}},
		Profiles: []v1alpha1.NodeProfile{
			{Name: "plain", K: 32, MaxRepairSymbols: 8, Epsilon: "1e-4", Schemes: []v1alpha1.Scheme{"CauchyReedSolomon"}, Delivery: "InOrder", MaxHoldMicroseconds: 50000, RepairStrategy: "Proactive", LossModel: "Independent", MaxRepairRatio: "0.25", Spread: true},
			{Name: "special", K: 16, MaxRepairSymbols: 4, Epsilon: "0.001", MessageOctets: 1 << 27, Schemes: []v1alpha1.Scheme{"XOR", "CauchyReedSolomon"}, Delivery: "Immediate", MaxHoldMicroseconds: 1500, RepairStrategy: "OnDemand", LossModel: "Empirical", MaxRepairRatio: "1"},
		},
	}
}

func to[T any](v T) *T { return &v }

// TestConvert: every field of the spec arrives, in the engine's terms.
func TestConvert(t *testing.T) {
	got, problems := Convert(spec(), 7)
	if len(problems) > 0 {
		t.Fatalf("problems: %+v", problems)
	}
	plain := &engine.Profile{
		Name: "plain",
		CSF:  csf.Params{K: 32, MaxM: 8, Epsilon: 1e-4, Schemes: []fec.Scheme{fec.Cauchy}, MaxRepairRatio: 0.25, Spread: true, Digest: true, FixedM: -1},
		CRF:  crf.Params{MaxHold: 50 * time.Millisecond, MaxOpenBlocks: maxOpenBlocks, MaxK: 255, MaxM: 255, MaxT: 9216, Schemes: 0b011, Digest: true},
	}
	special := &engine.Profile{
		Name: "special",
		CSF: csf.Params{K: 16, MaxM: 4, Epsilon: 0.001, MessageSize: 1 << 27, Schemes: []fec.Scheme{fec.XOR, fec.Cauchy}, Strategy: csf.OnDemand,
			LossModel: csf.Empirical, MaxRepairRatio: 1, Digest: true, FixedM: -1},
		CRF: crf.Params{Delivery: crf.Immediate, MaxHold: 1500 * time.Microsecond, MaxOpenBlocks: maxOpenBlocks, MaxK: 255, MaxM: 255, MaxT: 9216, Schemes: 0b111, Digest: true},
	}
	want := &engine.Config{Generation: 7, Domains: []engine.Domain{{
		Name: "backbone", Port: 52000, Site: "east", RequireIPsec: true, MaxRepairBandwidth: 1e9, Uplinks: []string{"wan0"},
		Sites: []engine.Site{
			{Name: "east", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/32")}, Gateways: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}},
			{Name: "west", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}},
		},
		Reporters: []netip.Prefix{netip.MustParsePrefix("10.255.0.0/24")}, ReportDrops: true,
		Transports: roce.Transports{
			VeRoCE: roce.VeRoCESettings{Enabled: true, Port: 4795, Retransmission: 0x40, SACK: 0x18, ResponseACK: 0x19, ResponseSACK: 0xff},
			MRC:    roce.MRCSettings{Enabled: true, Retransmission: 1},
		},
		WAN: &engine.WAN{Sites: []string{"west"}, Compatibility: true, PathMTU: 4300, LeastRate: 1e6, Queue: engine.Queue{Early: 1 << 18, Severe: 1 << 20}, Measure: true},
		Rules: []engine.Rule{
			{Profile: special, Sources: []netip.Prefix{netip.MustParsePrefix("10.1.8.0/24")}, Destinations: []string{"west"}},
			{Profile: plain},
		},
	}}}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{}), cmpopts.IgnoreUnexported(engine.Domain{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestConvertLeavesOutWhatItDoesNotUnderstand: never guessed, never open by default, and the rest is not touched.
func TestConvertLeavesOutWhatItDoesNotUnderstand(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  func(s *v1alpha1.CREMNodeSpec)
		domains int
		rules   int
		says    string
	}{
		{"IPsec mode of a newer operator", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].IPsec.Mode = "Optional" }, 0, 0, `ipsec mode "Optional" is not known to this agent, so the domain is not protected`},
		{"no IPsec mode", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].IPsec.Mode = "" }, 0, 0, `ipsec mode ""`},
		{"port zero", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Port = 0 }, 0, 0, "port 0 is no UDP port"},
		{"port too large", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Port = 1<<16 + 52000 }, 0, 0, "is no UDP port"},
		{"own site missing", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Site = "north" }, 0, 0, "site north is none of the domain's sites"},
		{"a prefix that is none", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Sites[1].CIDRs[0] = "10.2.0.0" }, 0, 0, `site west: "10.2.0.0" is not a prefix`},
		{"a mapped prefix", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Reporters[0] = "::ffff:10.0.0.0/104" }, 0, 0, "reporters:"},
		{"a gateway that is none", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Sites[0].Gateways[0] = "gw" }, 0, 0, `gateway "gw" is not an address`},
		{"reporter of a newer operator", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Reporter = "Everything" }, 1, 2, `reporter mode "Everything" is not known to this agent`},
		{"bit that asks for an acknowledgement", func(s *v1alpha1.CREMNodeSpec) {
			s.Domains[0].Transports.MRC.RetransmissionBit = to[v1alpha1.RetransmissionBit](7)
		}, 0, 0, "transports: mrc: retransmissionBit 7 is not from 0 to 6"},
		{"port of veRoCE too large", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Transports.VeRoCE.Port = to[int32](1<<16 + 4794) }, 0, 0, "transports: veroce: port 70330"},
		{"bit of veRoCE that asks for an acknowledgement", func(s *v1alpha1.CREMNodeSpec) {
			s.Domains[0].Transports.VeRoCE.RetransmissionBit = to[v1alpha1.RetransmissionBit](7)
		}, 0, 0, "transports: veroce: retransmissionBit 7 is not from 0 to 6"},
		{"negative bit", func(s *v1alpha1.CREMNodeSpec) {
			s.Domains[0].Transports.MRC.RetransmissionBit = to[v1alpha1.RetransmissionBit](-1)
		}, 0, 0, "transports: mrc: retransmissionBit -1 is not from 0 to 6"},
		{"port zero for veRoCE", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Transports.VeRoCE.Port = to[int32](0) }, 0, 0, "transports: veroce: port 0"},
		{"port of RoCEv2", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Transports.VeRoCE.Port = to[int32](4791) }, 0, 0, "transports: veroce: port 4791"},
		{"port of CREM messages for veRoCE", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Transports.VeRoCE.Port = to[int32](52000) }, 0, 0, "port 52000 is that of CREM messages and that of veRoCE"},
		{"opcode of data", func(s *v1alpha1.CREMNodeSpec) {
			s.Domains[0].Transports.VeRoCE.SACKOpcode = to[v1alpha1.AcknowledgementOpcode](10)
		}, 0, 0, "transports: veroce: opcode 10 is RC WRITE_ONLY"},
		{"opcode of an ACK", func(s *v1alpha1.CREMNodeSpec) {
			s.Domains[0].Transports.VeRoCE.ResponseACKOpcode = to[v1alpha1.AcknowledgementOpcode](0x11)
		}, 0, 0, "transports: veroce: opcode 17 is RC ACKNOWLEDGE"},
		{"opcode of a CNP", func(s *v1alpha1.CREMNodeSpec) {
			s.Domains[0].Transports.VeRoCE.ResponseSACKOpcode = to[v1alpha1.AcknowledgementOpcode](0x81)
		}, 0, 0, "transports: veroce: opcode 129 is CNP"},
		{"opcode zero", func(s *v1alpha1.CREMNodeSpec) {
			s.Domains[0].Transports.VeRoCE.SACKOpcode = to[v1alpha1.AcknowledgementOpcode](0)
		}, 0, 0, "transports: veroce: 0 is no opcode"},
		{"opcode over 255", func(s *v1alpha1.CREMNodeSpec) {
			s.Domains[0].Transports.VeRoCE.SACKOpcode = to[v1alpha1.AcknowledgementOpcode](256 + 24)
		}, 0, 0, "transports: veroce: 280 is no opcode"},
		{"a measurement of a newer operator", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].WAN.Measurement = "IOAM" }, 1, 2, `wan measurement "IOAM" is not known to this agent, which measures no tunnel`},
		{"tunnels of a newer operator", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].WAN.Mode = "Pipe" }, 1, 2, `wan mode "Pipe" is not known to this agent, which makes no tunnel`},
		{"pods", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Rules[0].Source = v1alpha1.SourcePods }, 1, 1, `compares the source with "Pods", which this agent can not`},
		{"prefixes without any", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Rules[0].CIDRs = nil }, 1, 1, `"CIDRs"`},
		{"profile missing", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Rules[1].Profile = "gone" }, 1, 1, "profile gone, which is not there"},
		{"scheme of a newer operator", func(s *v1alpha1.CREMNodeSpec) { s.Profiles[0].Schemes[0] = "RaptorQ" }, 1, 1, `scheme "RaptorQ" is not known`},
		{"delivery of a newer operator", func(s *v1alpha1.CREMNodeSpec) { s.Profiles[0].Delivery = "Sorted" }, 1, 1, `"Sorted" is not known`},
		{"epsilon that is none", func(s *v1alpha1.CREMNodeSpec) { s.Profiles[0].Epsilon = "1" }, 1, 1, `epsilon "1"`},
		{"ratio that is none", func(s *v1alpha1.CREMNodeSpec) { s.Profiles[0].MaxRepairRatio = "" }, 1, 1, `maxRepairRatio ""`},
		{"code too long", func(s *v1alpha1.CREMNodeSpec) { s.Profiles[0].K = 250 }, 1, 1, "k 250 and maxRepairSymbols 8 do not fit the code"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := spec()
			tc.change(s)
			got, problems := Convert(s, 1)
			if len(got.Domains) != tc.domains {
				t.Fatalf("%d domains", len(got.Domains))
			}
			if tc.domains > 0 && len(got.Domains[0].Rules) != tc.rules {
				t.Errorf("%d rules", len(got.Domains[0].Rules))
			}
			if len(problems) == 0 || !strings.Contains(problems[0].Message, tc.says) {
				t.Errorf("problems %+v", problems)
			}
		})
	}
}

// TestSamplesConvert: what config/samples shows works as a whole.
func TestSamplesConvert(t *testing.T) {
	var files []render.File
	for _, name := range []string{"domain.yaml", "profiles.yaml"} {
		raw, err := os.ReadFile("../../config/samples/" + name)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, render.File{Name: name, Data: raw})
	}
	f := Files{Facts: render.NodeFacts{Name: "gw1", Standalone: true}}
	loaded, err := f.judge(files, 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(loaded.Problems) > 0 || len(loaded.Config.Domains) != 1 || len(loaded.Config.Domains[0].Rules) != 4 {
		t.Errorf("problems %+v, config %+v", loaded.Problems, loaded.Config)
	}
}

// TestOpcodesThatTheAPITakes: what the CRD and render take for an opcode of an acknowledgement is what this agent can read as one, and the default port is
// the one of package roce.
func TestOpcodesThatTheAPITakes(t *testing.T) {
	domain := v1alpha1.CREMDomain{Spec: v1alpha1.CREMDomainSpec{Transports: &v1alpha1.Transports{VeRoCE: &v1alpha1.VeRoCE{}}}}
	veroce := domain.Spec.Transports.VeRoCE
	for opcode := range v1alpha1.AcknowledgementOpcode(300) {
		veroce.SACKOpcode = &opcode
		taken := true
		for _, fault := range render.ValidateDomain(&domain) {
			taken = taken && fault.Field != "spec.transports.veroce.sackOpcode"
		}
		if _, err := convertTransports(domain.Spec.Transports); taken && err != nil || !taken && opcode >= 24 && err == nil {
			t.Errorf("opcode %d: taken %v, %v", opcode, taken, err)
		}
	}
	veroce.SACKOpcode = nil
	if got, err := convertTransports(domain.Spec.Transports); err != nil || got.VeRoCE != (roce.VeRoCESettings{Enabled: true, Port: roce.VeRoCEPort}) {
		t.Errorf("%+v %v", got, err)
	}
	veroce.Port = to[int32](roce.Port)
	if faults := render.ValidateDomain(&domain); !strings.Contains(render.Faults(faults).Error(), "is the port of RoCEv2: ") {
		t.Errorf("%v", faults)
	}
}
