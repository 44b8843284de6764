// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/probe"
	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/agentapi"
)

// good are the facts of a node on which all is well.
func good() *facts {
	n := nodeOf("gw1")
	n.Generation, n.UID = 7, "uid"
	return &facts{
		desired: desire("gw1", n, nil), bootID: "boot", version: "v1",
		probe: &probe.Report{Kernel: "6.18", Features: []probe.Check{{Name: "TCX", Required: true, State: probe.OK}}},
		path: agentapi.Status{
			Generation: 7, AppliedGeneration: 7, Workers: []agentapi.Worker{{}, {ID: 1}}, Memory: agentapi.Memory{Limit: 1 << 30},
			Domains: []agentapi.Domain{{Name: "backbone", Applied: true, Reason: "Applied", Security: "NotRequired"}},
			Uplinks: []agentapi.Uplink{{Name: "wan0", Attached: true, Reason: "Applied", MTU: 9000}},
		},
	}
}

// TestStatusSaysWhatIsWrong: each fault shows in its own condition, with a documented reason, and makes Ready what it makes it.
func TestStatusSaysWhatIsWrong(t *testing.T) {
	for _, tc := range []struct {
		name      string
		change    func(f *facts)
		condition string
		status    metav1.ConditionStatus
		reason    string
		says      string
		ready     metav1.ConditionStatus
	}{
		{"nothing", func(*facts) {}, "Programmed", "True", "Programmed", "", "True"},
		{"no domain", func(f *facts) { f.desired.Spec, f.path.Domains, f.path.Uplinks = v1alpha1.CREMNodeSpec{}, nil, nil }, "Programmed", "True", "Programmed", "", "True"},
		{"the data path refuses it", func(f *facts) { f.failure = errors.New("no memory") }, "Programmed", "False", "AttachFailed", "no memory", "False"},
		{"a capability", func(f *facts) { f.failure = fmt.Errorf("load: %w", &bpf.Error{Class: bpf.ErrPermission}) }, "Programmed", "False", "MissingCapability", "", "False"},
		{"the kernel", func(f *facts) { f.failure = fmt.Errorf("load: %w", &bpf.Error{Class: bpf.ErrUnsupported}) }, "Programmed", "False", "KernelUnsupported", "", "False"},
		{"a right", func(f *facts) { f.failure = unix.EPERM }, "Programmed", "False", "MissingCapability", "", "False"},
		{"an older generation", func(f *facts) { f.path.AppliedGeneration = 6 }, "Programmed", "False", "Pending", "generation 7 is not in the data path yet", "False"},
		{"an uplink of two", func(f *facts) {
			f.path.Uplinks = append(f.path.Uplinks, agentapi.Uplink{Name: "wan1", Reason: "InterfaceNotFound", Problem: "There is no interface of this name."})
		}, "Programmed", "False", "PartiallyProgrammed", "uplink wan1: There is no interface of this name.", "False"},
		{"the only domain", func(f *facts) {
			f.path.Domains[0] = agentapi.Domain{Name: "backbone", Reason: "NoRoute", Problem: "no interface routes there", Security: "NotRequired"}
			f.path.Uplinks = nil
		}, "Programmed", "False", "NoRoute", "domain backbone: no interface routes there", "False"},
		{"a worker", func(f *facts) { f.path.Workers[1].LastBeatAge = 3.5 }, "DataPathHealthy", "False", "WorkersStalled", "packet worker 1", "False"},
		{"an MTU", func(f *facts) { f.path.MTUTooSmall = agentapi.MTUTooSmall{Flows: 3, Need: 4200, Have: 1500} }, "DataPathHealthy", "False", "MTUTooSmall", "4200 octets and the uplink has 1500", "False"},
		{"a NIC that bypasses the kernel", func(f *facts) { f.hidden = true }, "DataPathHealthy", "False", "TrafficNotVisible", "gateway on their path", "False"},
		{"such a NIC on a node that has nothing to protect", func(f *facts) { f.hidden, f.desired.Spec.Domains = true, nil }, "DataPathHealthy", "True", "Healthy", "", "True"},
		{"IPsec", func(f *facts) {
			f.path.Domains[0] = agentapi.Domain{Name: "backbone", Reason: "PolicyMissing", Problem: "x", Security: "PolicyMissing", SecurityProblem: "no ESP policy covers dir out"}
		}, "SecurityReady", "False", "PolicyMissing", "domain backbone: no ESP policy covers dir out", "False"},
		{"IPsec that is there", func(f *facts) { f.path.Domains[0].Security = "Secured" }, "SecurityReady", "True", "Secured", "", "True"},
		{"a feature that is worth a look", func(f *facts) {
			f.probe.Features = append(f.probe.Features, probe.Check{Name: "BPF file system", State: probe.Missing, Without: "a restart leaves a gap"})
		}, "Degraded", "True", "KernelUnsupported", "BPF file system: a restart leaves a gap", "True"},
		{"a feature that is not", func(f *facts) {
			f.probe.Features = append(f.probe.Features, probe.Check{Name: "GFNI and AVX-512", State: probe.Missing, Without: "slower"})
		}, "Degraded", "False", "NotDegraded", "", "True"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := good()
			tc.change(f)
			s := f.status()
			c := meta.FindStatusCondition(s.Conditions, tc.condition)
			if c == nil || c.Status != tc.status || c.Reason != tc.reason || !strings.Contains(c.Message, tc.says) {
				t.Errorf("%+v", c)
			}
			if r := meta.FindStatusCondition(s.Conditions, "Ready"); r.Status != tc.ready || r.Status == "False" && (r.Reason != tc.reason || r.Message != c.Message) {
				t.Errorf("%+v", r)
			}
			if tc.condition != "Programmed" && !meta.IsStatusConditionTrue(s.Conditions, "Programmed") {
				t.Errorf("Programmed is blamed, too: %+v", s.Conditions)
			}
		})
	}
}

// G13: which interfaces might have been uplinks, and why they are none, is in the status, by name, and nothing is amiss for that.
func TestG13_ExcludedInterfacesAreTold(t *testing.T) {
	f := good()
	f.path.Excluded = []agentapi.Exclusion{{Name: "mgmt0", Why: "It leads to 203.0.113.10."}, {Name: "lo", Why: "It is a loopback interface."}}
	s := f.status()
	want := []v1alpha1.NodeExcludedInterface{{Name: "lo", Why: "It is a loopback interface."}, {Name: "mgmt0", Why: "It leads to 203.0.113.10."}}
	if !slices.Equal(s.Excluded, want) || !meta.IsStatusConditionTrue(s.Conditions, "Ready") {
		t.Errorf("%+v, %+v", s.Excluded, s.Conditions)
	}
}

// TestStatusFitsItsSchema: whatever the data path says, no field is longer than the API server takes, no list has an entry twice.
func TestStatusFitsItsSchema(t *testing.T) {
	f := good()
	long := strings.Repeat("ä", 40000)
	f.bootID, f.version, f.failure, f.probe.Kernel = long, long, errors.New(long), long
	for i := range 200 {
		f.path.Uplinks = append(f.path.Uplinks, agentapi.Uplink{Name: fmt.Sprint("wan", i%100), Why: long, Problem: long, Reason: "AttachFailed"})
		f.path.Excluded = append(f.path.Excluded, agentapi.Exclusion{Name: fmt.Sprint("veth", i), Why: long})
		f.probe.Features = append(f.probe.Features, probe.Check{Name: "x", State: probe.Missing, Without: long})
	}
	s := f.status()
	seen := map[v1alpha1.InterfaceName]bool{}
	for _, u := range s.Uplinks {
		if seen[u.Name] || len(u.Why) > 256 || len(u.Message) > 1024 || !strings.HasSuffix(u.Message, "…") && u.Name != "wan0" {
			t.Errorf("uplink %s: %d, %d", u.Name, len(u.Why), len(u.Message))
		}
		seen[u.Name] = true
	}
	if len(s.Excluded) != 64 || len(s.Excluded[0].Why) > 256 {
		t.Errorf("%d excluded interfaces", len(s.Excluded))
	}
	if len(s.Uplinks) > 64 || len(s.BootID) > 36 || len(s.AgentVersion) > 64 || len(s.Domains[0].Message) > 1024 || len(s.Capabilities.Kernel) > 128 || len(s.Capabilities.Missing) != 1 || len(s.Capabilities.Missing[0]) > 256 {
		t.Errorf("too long: %d uplinks", len(s.Uplinks))
	}
	for _, c := range s.Conditions {
		if len(c.Message) > 32768 {
			t.Errorf("%s: %d", c.Type, len(c.Message))
		}
	}
}

// TestReasonsAreTheAPIs: internal/agentapi has its own words for these, since it imports nothing.
func TestReasonsAreTheAPIs(t *testing.T) {
	for have, want := range map[string]string{
		agentapi.ReasonApplied: v1alpha1.ReasonApplied, agentapi.ReasonInterfaceNotFound: v1alpha1.ReasonInterfaceNotFound, agentapi.ReasonNoRoute: v1alpha1.ReasonNoRoute,
		agentapi.ReasonKernelUnsupported: v1alpha1.ReasonKernelUnsupported, agentapi.ReasonMissingCapability: v1alpha1.ReasonMissingCapability,
		agentapi.ReasonAttachFailed: v1alpha1.ReasonAttachFailed, agentapi.ReasonNotRequired: v1alpha1.ReasonNotRequired, agentapi.ReasonSecured: v1alpha1.ReasonSecured,
		agentapi.ReasonPolicyMissing: v1alpha1.ReasonPolicyMissing,
	} {
		if have != want {
			t.Errorf("%q is %q in the API", have, want)
		}
	}
	known := map[string]bool{}
	for _, c := range probe.Run(probe.Options{}).Features {
		known[c.Name] = true
	}
	for _, name := range degrading {
		if !known[name] {
			t.Errorf("%q is no feature of agent/probe", name)
		}
	}
}

// TestG05_Pace: at once when worse, after a while when better, bounded when both come and go, and soon for a new generation.
func TestG05_Pace(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	status := func(change func(*facts)) *v1alpha1.CREMNodeStatus {
		f := good()
		if change != nil {
			change(f)
		}
		s := f.status()
		return &s
	}
	fine, sick := status(nil), status(func(f *facts) { f.path.Workers[0].LastBeatAge = 9 })
	next := status(func(f *facts) { f.desired.Generation, f.path.AppliedGeneration = 8, 8 })
	var p pacer
	if _, ok := p.due(start, fine, status(nil)); ok {
		t.Error("equal ones are written")
	}
	if at, ok := p.due(start, fine, sick); !ok || !at.Equal(start) {
		t.Errorf("worse is due at %v", at)
	}
	p.wrote(start)
	if at, _ := p.due(start.Add(time.Second), sick, next); !at.Equal(start.Add(generationGap)) {
		t.Errorf("a new generation is due at %v", at)
	}
	seen := status(func(f *facts) { f.desired.Generation = 8 }) // and not applied yet
	for _, after := range []time.Duration{time.Minute, time.Minute + applyHold/2, time.Minute + applyHold} {
		if at, ok := p.due(start.Add(after), sick, seen); !ok || !at.Equal(start.Add(time.Minute+applyHold)) {
			t.Errorf("a generation that is not applied is due at %v", at)
		}
	}
	if at, _ := p.due(start.Add(time.Minute+applyHold/4), sick, next); !at.Equal(start.Add(time.Minute + applyHold/4)) {
		t.Errorf("a generation that is applied soon after it was seen is due at %v", at)
	}
	if at, _ := p.due(start.Add(time.Second), seen, next); !at.Equal(start.Add(generationGap)) {
		t.Errorf("a generation that was seen before and is now applied is due at %v", at)
	}
	if at, _ := p.due(start.Add(time.Second), fine, sick); !at.Equal(start.Add(writeGap)) {
		t.Errorf("worse again is due at %v", at)
	}
	if at, _ := p.due(start.Add(10*time.Second), sick, fine); !at.Equal(start.Add(10*time.Second + betterHold)) {
		t.Errorf("better is due at %v", at)
	}
	if at, _ := p.due(start.Add(12*time.Second), sick, fine); !at.Equal(start.Add(10*time.Second + betterHold)) {
		t.Errorf("better that stays is due at %v", at)
	}
	p.due(start.Add(13*time.Second), sick, sick) // it was not better for a moment
	if at, _ := p.due(start.Add(14*time.Second), sick, fine); !at.Equal(start.Add(14*time.Second + betterHold)) {
		t.Errorf("better after a relapse is due at %v", at)
	}
	silent := fine.DeepCopy()
	meta.FindStatusCondition(silent.Conditions, "Ready").Status = metav1.ConditionUnknown // by the operator: the agent did not report
	if at, ok := p.due(start.Add(20*time.Second), silent, fine); !ok || at.After(start.Add(20*time.Second)) {
		t.Errorf("an agent that is back is reported at %v", at)
	}
	reported, writes := fine.DeepCopy(), 0
	p = pacer{}
	for i := range 300 { // 30 s at 10 Hz
		now := start.Add(time.Duration(i) * 100 * time.Millisecond)
		wanted := fine
		if i%2 == 0 {
			wanted = sick
		}
		if at, ok := p.due(now, reported, wanted); ok && !at.After(now) {
			reported = wanted.DeepCopy()
			p.wrote(now)
			writes++
		}
	}
	if writes < 1 || writes > 6 || same(reported, fine) {
		t.Errorf("%d writes in 30 s, the last one good: %v", writes, same(reported, fine))
	}
	was := withTimes(*fine, &v1alpha1.CREMNodeStatus{}, start)
	is := withTimes(*sick, &was, start.Add(time.Hour))
	for _, c := range is.Conditions {
		changed := c.Type == "DataPathHealthy" || c.Type == "Ready"
		if got := c.LastTransitionTime.Equal(&metav1.Time{Time: start.Add(time.Hour)}); got != changed {
			t.Errorf("%s: transition at %v", c.Type, c.LastTransitionTime)
		}
	}
}

// TestG23_TrafficThatIsNotVisible: the counters of RDMA ports rise and ours do not, for half a minute.
func TestG23_TrafficThatIsNotVisible(t *testing.T) {
	sys := fstest.MapFS{}
	ports := func(rcv, xmit int) {
		sys["class/infiniband/mlx5_0/ports/1/counters/port_rcv_packets"] = &fstest.MapFile{Data: fmt.Appendf(nil, "%d\n", rcv)}
		sys["class/infiniband/mlx5_0/ports/1/counters/port_xmit_packets"] = &fstest.MapFile{Data: fmt.Appendf(nil, "%d\n", xmit)}
	}
	v, now := visibility{sys: sys}, time.Duration(time.Now().UnixNano())
	step := func(rcv, xmit int, seen uint64) bool {
		ports(rcv, xmit)
		now += visibilityWindow
		return v.look(now, seen)
	}
	for i, tc := range []struct {
		rcv, xmit int
		seen      uint64
		hidden    bool
	}{
		{0, 0, 0, false},
		{5000, 0, 0, false}, {10000, 500, 0, false}, {15000, 5000, 0, true}, // the third window in a row
		{15000, 5000, 0, false},                                                                                                    // it ends
		{25000, 5000, 0, false}, {35000, 5000, 7, false}, {45000, 5000, 7, false}, {55000, 5000, 7, false}, {65000, 5000, 7, true}, // seen once meanwhile
		{75000, 5000, 8, false},
		{75100, 5000, 8, false}, {75200, 5000, 8, false}, {75300, 5000, 8, false}, // too few to matter
	} {
		if got := step(tc.rcv, tc.xmit, tc.seen); got != tc.hidden {
			t.Errorf("window %d: hidden is %v", i, got)
		}
	}
	if v.look(now+time.Second, 8) || (&visibility{sys: fstest.MapFS{}}).look(now, 0) {
		t.Error("hidden without any RDMA port")
	}
	s := agentapi.Status{Counters: map[string]uint64{"tap_frames": 1, "kernel_in_order": 2, "kernel_open_stale": 4, "kernel_turned": 100, "kernel_path_taken": 100, "messages": 100, "kernel_unregistered": 8}}
	if n := seenPackets(&s); n != 15 {
		t.Errorf("%d packets seen", n)
	}
}
