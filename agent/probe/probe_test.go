// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/uplink"
	"crem.dev/crem/agent/wire"
)

var update = flag.Bool("update", false, "write the golden files anew")

func example(state State) *Report {
	r := &Report{
		K: 32, Kernel: "6.12.1", Architecture: "amd64", Processors: 8,
		Capabilities: []Check{{Name: "CAP_BPF", Required: true, State: OK, Use: "loads the programs", Without: "no program can be loaded"}},
		Features: []Check{
			{Name: "TCX", Required: true, State: state, Use: "programs on both sides of the uplinks", Without: "nothing can be restored in order", Detail: detail(state)},
			{Name: "UDP_SEGMENT", State: Missing, Use: "sends repairs by one call", Without: "repairs cost more", Detail: "protocol not available"},
		},
	}
	r.addUplinks(uplink.Facts{
		Uplinks:  []uplink.Uplink{{Name: "wan0", MTU: 1500, Why: "It routes to 10.2.0.0/16."}, {Name: "wan1", MTU: 9000, Why: "It is named in the domain's uplinks."}},
		Excluded: []uplink.Exclusion{{Name: "wan2", Why: "There is no interface of this name."}},
		Unrouted: []netip.Prefix{netip.MustParsePrefix("fd00:2::/32")},
	})
	r.judge()
	return r
}

func detail(s State) string {
	if s == OK {
		return ""
	}
	return "attach a program: not supported"
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile("testdata/"+file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got; -update writes it anew)\n%s", file, diff)
	}
}

func TestText(t *testing.T) {
	for file, state := range map[string]State{"works.txt": OK, "fails.txt": Missing} {
		var out bytes.Buffer
		if err := example(state).Text(&out); err != nil {
			t.Fatal(err)
		}
		golden(t, file, out.Bytes())
	}
}

func TestJSON(t *testing.T) {
	out, err := json.MarshalIndent(example(Missing), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "fails.json", append(out, '\n'))
}

// TestOnlyWhatIsRequiredFails: an optional feature that is missing is said, and is no failure; one that could not be tried is.
func TestOnlyWhatIsRequiredFails(t *testing.T) {
	if !example(OK).OK || example(Missing).OK || example(Unknown).OK {
		t.Error("the verdict does not follow from what is required")
	}
}

func TestStates(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want State
	}{
		{nil, OK}, {unix.ENOPROTOOPT, Missing}, {unix.EPERM, Unknown}, {&bpf.Error{Class: bpf.ErrPermission}, Unknown}, {&bpf.Error{Class: bpf.ErrUnsupported}, Missing},
	} {
		if got := (feature{try: func() error { return tc.err }}).check().State; got != tc.want {
			t.Errorf("%v: %s, want %s", tc.err, got, tc.want)
		}
	}
}

// TestRunOnThisNode: whatever this node can do, the report is whole, consistent and leaves nothing behind.
func TestRunOnThisNode(t *testing.T) {
	before := descriptors(t)
	r := Run(Options{Uplinks: []string{"lo", "no-such-if"}, PinDir: "/sys/fs/bpf/crem"})
	if len(r.Capabilities) != 4 || len(r.Features) < 8 || r.Kernel == "" {
		t.Errorf("%+v", r)
	}
	ok := true
	for _, c := range append(r.Capabilities, r.Features...) {
		if c.Use == "" || c.Without == "" {
			t.Errorf("%s does not say what for", c.Name)
		}
		if c.State != OK && c.Detail == "" {
			t.Errorf("%s is %s and does not say why", c.Name, c.State)
		}
		ok = ok && (c.State == OK || !c.Required)
		t.Logf("%s %s %s", c.State, c.Name, c.Detail)
	}
	if r.OK != ok {
		t.Errorf("verdict %v", r.OK)
	}
	says := strings.Join(r.Lacks, "\n")
	if len(r.Uplinks) != 0 || !strings.Contains(says, "lo is no uplink: It is a loopback interface.") || !strings.Contains(says, "no-such-if is no uplink: There is no interface of this name.") {
		t.Errorf("uplinks %+v\n%s", r.Uplinks, says)
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d open files before, %d after", before, after)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Tunnels are looked at where a domain has some, and only there.
func TestWANECN_ProbeLooksAtTunnels(t *testing.T) {
	for _, tunnels := range []bool{false, true} {
		named, pins := false, false
		for _, f := range featureTable(Options{Tunnels: tunnels}) {
			named = named || f.name == "programs of tunnels"
			pins = pins || strings.Contains(f.without, "no flow into a tunnel")
			if f.name == "programs of tunnels" {
				if c := f.check(); c.State == Missing {
					t.Errorf("%+v", c)
				}
			}
		}
		if named != tunnels || pins != tunnels {
			t.Errorf("tunnels %v: programs %v, pins %v", tunnels, named, pins)
		}
	}
}

// Where REPAIR fits an uplink, every source packet of that RDMA MTU fits a tunnel whose outer header is of the IP version of REPAIR.
func TestWANECN_SourcePacketsFitWhereRepairsDo(t *testing.T) {
	for k := 1; k <= 254; k++ {
		for _, mtu := range rdmaMTUs {
			for v6, remote := range map[bool]string{false: "192.0.2.1", true: "2001:db8::1"} {
				const innerIPv6, udp, invariantCRC = 40, 8, 4
				source := innerIPv6 + udp + roce.WriteOnlyImm.HeaderLen() + mtu + invariantCRC
				if need, repair := ecn.NeededMTU(source, netip.MustParseAddr(remote), 0), wire.NeededMTU(mtu, k, v6); need > repair {
					t.Errorf("k %d, RDMA MTU %d, outer %s: a tunnel needs %d, REPAIR %d", k, mtu, remote, need, repair)
				}
			}
		}
	}
}
