// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/test/tcpline"
)

// nodeOf is a CREMNode as the operator writes it.
func nodeOf(name string) *v1alpha1.CREMNode {
	s := spec()
	s.Domains[0].IPsec.Mode = v1alpha1.IPsecBoundaryFiltered
	return &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *s}
}

type kubernetes struct {
	t *testing.T
	ctrl.Client
}

func (k kubernetes) create(o ctrl.Object) {
	k.t.Helper()
	if err := k.Create(k.t.Context(), o); err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = k.Delete(k.t.Context(), o) })
}

func (k kubernetes) node(name string) *v1alpha1.CREMNode {
	k.t.Helper()
	n := new(v1alpha1.CREMNode)
	if err := k.Get(k.t.Context(), types.NamespacedName{Name: name}, n); err != nil && !apierrors.IsNotFound(err) {
		k.t.Fatal(err)
	}
	return n
}

// change writes a spec and gives its generation.
func (k kubernetes) change(name string, f func(*v1alpha1.CREMNodeSpec)) int64 {
	k.t.Helper()
	n := k.node(name)
	before := n.DeepCopy()
	f(&n.Spec)
	if err := k.Patch(k.t.Context(), n, ctrl.MergeFrom(before)); err != nil {
		k.t.Fatal(err)
	}
	return n.Generation
}

func (k kubernetes) is(name, condition string, status metav1.ConditionStatus, reason string) bool {
	k.t.Helper()
	c := meta.FindStatusCondition(k.node(name).Status.Conditions, condition)
	return c != nil && c.Status == status && c.Reason == reason
}

func (k kubernetes) ready(name string, generation int64) func() bool {
	return func() bool {
		n := k.node(name)
		return n.Status.AppliedGeneration == generation && n.Status.ObservedGeneration == generation && meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.ConditionReady)
	}
}

// TestClusterAppliesAndReports: spec to data path, status, Lease and disk; a change within 3 s; a deleted object frees the node.
func TestClusterAppliesAndReports(t *testing.T) {
	cfg := apiServer(t)
	k, dir := kubernetes{t, admin(t, cfg)}, t.TempDir()
	path := &dataPath{}
	r := startCluster(t, cfg, "gw-report", dir, path)
	soon(t, "an empty configuration while there is no CREMNode", func() bool { c, _ := path.last(); return c != nil && len(c.Domains) == 0 && !c.Provisional })
	if bad := r.agent.Unready(); len(bad) > 0 {
		t.Errorf("not ready without any domain: %v", bad)
	}
	k.create(nodeOf("gw-report"))
	soon(t, "generation 1 is reported", k.ready("gw-report", 1))
	n := k.node("gw-report")
	for _, c := range n.Status.Conditions {
		if c.ObservedGeneration != 1 || c.LastTransitionTime.IsZero() {
			t.Errorf("condition %+v", c)
		}
	}
	want := map[string]string{"Programmed": "Programmed", "DataPathHealthy": "Healthy", "SecurityReady": "NotRequired", "Ready": "Ready", "Degraded": "NotDegraded"}
	for kind, reason := range want {
		status := metav1.ConditionTrue
		if kind == "Degraded" {
			status = metav1.ConditionFalse
		}
		if !k.is("gw-report", kind, status, reason) {
			t.Errorf("%s: %+v", kind, n.Status.Conditions)
		}
	}
	if s := n.Status; len(s.Conditions) != len(want) || s.AgentVersion != "v0.0.0-test" || s.BootID != bootID() || s.MemoryLimitBytes != 1<<30 || s.Capabilities.Kernel != "6.18" ||
		len(s.Capabilities.Missing) != 1 || len(s.Domains) != 1 || !s.Domains[0].Programmed || len(s.Uplinks) != 1 || s.Uplinks[0].Name != "wan0" || s.Uplinks[0].MTU != 9000 {
		t.Errorf("status %+v", s)
	}
	for _, m := range n.ManagedFields {
		if m.Subresource == "status" && m.Manager != v1alpha1.FieldManagerAgent {
			t.Errorf("the status is also owned by %s", m.Manager)
		}
	}
	lease := new(coordinationv1.Lease)
	if err := k.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "gw-report"}, lease); err != nil {
		t.Fatal(err)
	}
	if lease.Labels[v1alpha1.ComponentLabel] != v1alpha1.ComponentAgent || *lease.Spec.LeaseDurationSeconds != 40 || *lease.Spec.HolderIdentity != "gw-report" || time.Since(lease.Spec.RenewTime.Time) > time.Minute {
		t.Errorf("Lease %+v %+v", lease.Labels, lease.Spec)
	}

	generation := k.change("gw-report", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Port = 52001 })
	took := soon(t, "generation 2 is reported", k.ready("gw-report", generation))
	t.Logf("a changed spec was reported as applied after %v", took)
	if took > 3*time.Second {
		t.Errorf("reported after %v, at most 3 s are allowed", took)
	}
	if c, _ := path.last(); c.Domains[0].Port != 52001 || c.Generation != generation {
		t.Errorf("configuration %+v", c)
	}
	last, err := r.agent.store.load()
	if err != nil || last.Desired.Generation != generation || last.Desired.Spec.Domains[0].Port != 52001 {
		t.Errorf("disk copy %+v, %v", last, err)
	}

	k.change("gw-report", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Rules[0].Profile = "gone" })
	soon(t, "the bad item is reported", func() bool { return k.is("gw-report", "Programmed", "False", "PartiallyProgrammed") })
	if s := k.node("gw-report").Status; s.Domains[0].Programmed || s.Domains[0].Reason != "InvalidSpec" || !strings.Contains(s.Domains[0].Message, "gone") {
		t.Errorf("item %+v", s.Domains[0])
	}
	before := n.Status.Conditions
	after := k.node("gw-report").Status.Conditions
	if a, b := meta.FindStatusCondition(before, "SecurityReady"), meta.FindStatusCondition(after, "SecurityReady"); !a.LastTransitionTime.Equal(&b.LastTransitionTime) {
		t.Error("the transition time of a condition that did not change was changed")
	}

	if err := k.Delete(t.Context(), k.node("gw-report")); err != nil {
		t.Fatal(err)
	}
	soon(t, "nothing is in force", func() bool { c, _ := path.last(); return len(c.Domains) == 0 })
	r.stop()
	if !path.ended {
		t.Error("the data path was not stopped")
	}
}

// TestG04_GenerationIsThatOfWhatWasApplied: the spec changes while the data path takes up the one before.
func TestG04_GenerationIsThatOfWhatWasApplied(t *testing.T) {
	cfg := apiServer(t)
	k := kubernetes{t, admin(t, cfg)}
	k.create(nodeOf("gw-race"))
	path := &dataPath{gate: map[int64]chan struct{}{2: make(chan struct{}), 3: make(chan struct{})}}
	r := startCluster(t, cfg, "gw-race", t.TempDir(), path)
	soon(t, "generation 1", k.ready("gw-race", 1))
	k.change("gw-race", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Port = 52002 })
	soon(t, "generation 2 is wanted", func() bool { return len(r.agent.Unready()) > 0 })
	k.change("gw-race", func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].Port = 52003 })
	time.Sleep(500 * time.Millisecond) // in which a report could come that must not
	if s := k.node("gw-race").Status; s.AppliedGeneration != 1 || s.ObservedGeneration != 1 {
		t.Errorf("generation %d is said to be applied while 2 is not", s.AppliedGeneration)
	}
	close(path.gate[2])
	soon(t, "2 is reported while 3 waits", k.ready("gw-race", 2))
	if c, _ := path.last(); c.Domains[0].Port != 52002 {
		t.Errorf("port %d under generation 2", c.Domains[0].Port)
	}
	close(path.gate[3])
	soon(t, "3 is reported", k.ready("gw-race", 3))
	if bad := r.agent.Unready(); len(bad) > 0 {
		t.Errorf("not ready: %v", bad)
	}
}

// TestG05_SteadyAndFlapping: nothing is written while nothing changes; a health that flips ten times a second costs a bounded number of writes, and the last

// TestG04_RebootAppliesEverything: after a reboot the kernel is empty. What the disk has is applied, though it is of another boot, and then the whole of what
// the API server has, though its generation is the one that was reported before.
func TestG04_RebootAppliesEverything(t *testing.T) {
	cfg := apiServer(t)
	k, dir := kubernetes{t, admin(t, cfg)}, t.TempDir()
	k.create(nodeOf("gw-boot"))
	before := startCluster(t, cfg, "gw-boot", dir, &dataPath{})
	soon(t, "generation 1 is reported", k.ready("gw-boot", 1))
	before.stop()
	s := store{dir: dir, node: "gw-boot"}
	last, err := s.load()
	if err != nil || last.BootID != bootID() {
		t.Fatalf("%+v, %v", last, err)
	}
	if err := s.save(&last.Desired, "an earlier boot"); err != nil {
		t.Fatal(err)
	}
	path := &dataPath{}
	after := startCluster(t, cfg, "gw-boot", dir, path)
	soon(t, "both are applied", func() bool {
		c, n := path.last()
		return n >= 2 && c.Generation == 1 && !c.Provisional && len(c.Domains) == 1
	})
	soon(t, "generation 1 is reported", k.ready("gw-boot", 1))
	if after.log.count(`"nodeRestarted"=true`) != 1 {
		t.Error("the log does not say that the node was restarted")
	}
	soon(t, "the disk has the boot", func() bool { last, err := s.load(); return err == nil && last.BootID == bootID() })
}

// word is right.
func TestG05_SteadyAndFlapping(t *testing.T) {
	cfg := apiServer(t)
	k := kubernetes{t, admin(t, cfg)}
	k.create(nodeOf("gw-calm"))
	path := &dataPath{}
	r := startCluster(t, cfg, "gw-calm", t.TempDir(), path)
	soon(t, "generation 1", k.ready("gw-calm", 1))
	time.Sleep(time.Second) // what the start still writes
	before, version := r.requests.writes(), k.node("gw-calm").ResourceVersion
	const calm = 12 * time.Second
	for end := time.Now().Add(calm); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		path.set(func(p *dataPath) {
			p.change = func(s *agentapi.Status) { s.Counters["tap_frames"] += uint64(time.Now().UnixNano()) }
		})
		r.agent.Notice()
	}
	if n := r.requests.writes() - before; n > 0 || k.node("gw-calm").ResourceVersion != version {
		t.Errorf("%d writes in %v in which nothing changed", n, calm)
	}
	r.reload <- struct{}{}  // the same again is no news either
	time.Sleep(time.Second) // in which a write could come that must not
	if n := r.requests.writes() - before; n > 0 {
		t.Errorf("%d writes for what was applied before", n)
	}

	const flapping = 15 * time.Second
	for i, end := 0, time.Now().Add(flapping); time.Now().Before(end); i++ {
		path.set(func(p *dataPath) { p.beat = float64(i%2) * 5 })
		r.agent.Notice()
		time.Sleep(100 * time.Millisecond) // 10 Hz
	}
	n := r.requests.writes() - before
	t.Logf("%d writes in %v at 10 Hz", n, flapping)
	if n < 1 || n > int(flapping/writeGap)+1 {
		t.Errorf("%d writes in %v", n, flapping)
	}
	if !k.is("gw-calm", "Ready", "False", "WorkersStalled") {
		t.Errorf("what is worse was not said: %+v", k.node("gw-calm").Status.Conditions)
	}
	path.set(func(p *dataPath) { p.beat = 0 })
	took := soon(t, "healthy again", k.ready("gw-calm", 1))
	if took < betterHold-2*time.Second {
		t.Errorf("said to be better after %v", took)
	}
}

// TestClusterFollowsSlices: rules with pods get the addresses of their profile's slices, of no other, as they change.
func TestClusterFollowsSlices(t *testing.T) {
	cfg := apiServer(t)
	k := kubernetes{t, admin(t, cfg)}
	special := strings.Repeat("special-", 10) + "x" // longer than a label may be
	slice := func(name, profile string, addresses ...v1alpha1.NodeAddress) *v1alpha1.CREMEndpointSlice {
		return &v1alpha1.CREMEndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.ProfileLabel: v1alpha1.ProfileLabelValue(profile)}}, Profile: v1alpha1.ObjectName(profile), Addresses: addresses,
		}
	}
	first := slice("special-1", special, "10.1.0.5", "10.1.0.6")
	k.create(first)
	k.create(slice("foreign-1", "foreign", "10.1.0.66"))
	n := nodeOf("gw-pods")
	k.create(n)
	path := &dataPath{}
	r := startCluster(t, cfg, "gw-pods", t.TempDir(), path)
	soon(t, "generation 1", k.ready("gw-pods", 1))
	if q := r.requests.matching("cremendpointslices"); len(q) > 0 {
		t.Errorf("slices are read though no rule asks for pods: %v", q)
	}
	generation := k.change("gw-pods", func(s *v1alpha1.CREMNodeSpec) {
		for i := range s.Profiles {
			if s.Profiles[i].Name == "special" {
				s.Profiles[i].Name = v1alpha1.ObjectName(special)
			}
		}
		s.Domains[0].Rules[0] = v1alpha1.NodeRule{Profile: v1alpha1.ObjectName(special), Source: v1alpha1.SourcePods}
	})
	soon(t, "rules with pods", k.ready("gw-pods", generation))
	has := func(address string) bool {
		c, _ := path.last()
		p := c.Domains[0].Rules[0].Pods
		return p != nil && p.Has(netip.MustParseAddr(address))
	}
	if !has("10.1.0.5") || !has("10.1.0.6") || has("10.1.0.66") {
		t.Fatal("the pods are not those of the slice")
	}
	before := r.requests.writes()
	k.create(slice("special-2", special, "fd00:1::7"))
	t.Logf("a new slice was in force after %v", soon(t, "a second slice", func() bool { return has("fd00:1::7") && has("10.1.0.5") }))
	first.Addresses = first.Addresses[1:]
	if err := k.Update(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	soon(t, "a pod that is gone", func() bool { return !has("10.1.0.5") && has("10.1.0.6") })
	if n := r.requests.writes() - before; n > 0 {
		t.Errorf("%d status writes because pods changed", n)
	}
	for _, q := range r.requests.matching("cremendpointslices") {
		if !strings.Contains(q, "labelSelector=crem.dev%2Fprofile+in+%28"+v1alpha1.ProfileLabelValue(special)+"%29") {
			t.Errorf("more slices are read than are needed: %s", q)
		}
	}
	for _, q := range r.requests.matching("/cremnodes?") {
		if !strings.Contains(q, "fieldSelector=metadata.name%3Dgw-pods") {
			t.Errorf("more nodes are read than the own one: %s", q)
		}
	}
	soon(t, "the pods are on disk", func() bool {
		last, err := r.agent.store.load()
		return err == nil && len(last.Desired.Pods[v1alpha1.ObjectName(special)]) == 2
	})
}

// TestG02_NotReadyUntilApplied: a data path that can not take up its configuration is reported with its reason, and tried again.
func TestG02_NotReadyUntilApplied(t *testing.T) {
	cfg := apiServer(t)
	k := kubernetes{t, admin(t, cfg)}
	k.create(nodeOf("gw-fail"))
	path := &dataPath{fail: errors.New("verifier says no")}
	r := startCluster(t, cfg, "gw-fail", t.TempDir(), path)
	soon(t, "the failure is reported", func() bool { return k.is("gw-fail", "Programmed", "False", "AttachFailed") })
	if bad := r.agent.Unready(); len(bad) != 1 || !strings.Contains(bad[0], "verifier says no") {
		t.Errorf("unready: %v", bad)
	}
	if s := k.node("gw-fail").Status; s.AppliedGeneration != 0 || s.ObservedGeneration != 1 {
		t.Errorf("status %+v", s)
	}
	if s, _ := r.agent.Status(false); s.ConfigStale == "" {
		t.Error("the local status does not say it")
	}
	path.set(func(p *dataPath) { p.fail = nil })
	soon(t, "it works", k.ready("gw-fail", 1))
}

// TestG20_APIServerAway: the API server can not be reached, the agent is restarted meanwhile and protects by its disk copy; a change is applied when the API server is
// back, and nothing was removed before.
func TestG20_APIServerAway(t *testing.T) {
	direct := apiServer(t)
	way := tcpline.New(t, direct.Host, nil)
	cfg := rest.CopyConfig(direct)
	cfg.Host = "https://" + way.Addr()
	k, dir := kubernetes{t, admin(t, direct)}, t.TempDir()
	k.create(nodeOf("gw-away"))
	r := startCluster(t, cfg, "gw-away", dir, &dataPath{})
	soon(t, "generation 1", k.ready("gw-away", 1))
	if s, _ := r.agent.Status(false); s.APIConnected == nil || !*s.APIConnected {
		t.Error("not connected")
	}
	way.Cut()
	soon(t, "the API server is known to be away", func() bool { s, _ := r.agent.Status(false); return !*s.APIConnected })
	if bad := r.agent.Unready(); len(bad) > 0 {
		t.Errorf("not ready without the API server: %v", bad)
	}
	r.stop()

	path := &dataPath{}
	again := startCluster(t, cfg, "gw-away", dir, path)
	took := soon(t, "the disk copy is applied", func() bool { _, n := path.last(); return n == 1 })
	t.Logf("protected %v after a start without the API server", took)
	if c, _ := path.last(); took > time.Second || c.Generation != 1 || c.Domains[0].Port != 52000 || !c.Provisional {
		t.Errorf("after %v: %+v", took, c)
	}
	if bad := again.agent.Unready(); len(bad) > 0 {
		t.Errorf("not ready by the disk copy: %v", bad)
	}
	time.Sleep(5 * time.Second) // several tries to reach the API server, each of which could apply something
	if _, n := path.last(); n != 1 {
		t.Errorf("applied %d times without the API server", n)
	}
	again.stop()

	fresh := &dataPath{}
	if err := os.WriteFile(filepath.Join(dir, "desired.json"), []byte("crem-desired-1 00\n{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	third := startCluster(t, cfg, "gw-away", dir, fresh)
	soon(t, "the damaged copy is said to be one", func() bool { return third.log.count("its checksum is wrong") == 1 })
	if bad := third.agent.Unready(); len(bad) != 1 || !strings.Contains(bad[0], "no configuration applied yet") {
		t.Errorf("unready: %v", bad)
	}
	way.Join()
	took = soon(t, "the API server's configuration is applied", func() bool { c, n := fresh.last(); return n == 1 && !c.Provisional && c.Generation == 1 })
	t.Logf("applied %v after the API server was back", took)
	soon(t, "the damaged copy is replaced", func() bool {
		last, err := third.agent.store.load()
		return err == nil && last.Desired.Generation == 1
	})
	generation := k.change("gw-away", func(s *v1alpha1.CREMNodeSpec) { s.Domains = nil })
	soon(t, "all is gone", k.ready("gw-away", generation))
}

// TestClusterReportsSites: figures of other sites are shown coarsely, noise in them is never written, and an agent that starts goes on from them.
func TestClusterReportsSites(t *testing.T) {
	cfg := apiServer(t)
	k, dir := kubernetes{t, admin(t, cfg)}, t.TempDir()
	k.create(nodeOf("gw-sites"))
	packets := uint64(3_000_000)
	figures := func(s *agentapi.Status) {
		packets += 1000
		s.Sites = []agentapi.Site{{Domain: "backbone", Name: "west", Protected: 12 + int(packets/1000%2), SRTT: 0.0205 + float64(packets/1000%3)*1e-4, Expected: packets, Lost: packets / 500}}
	}
	path := &dataPath{change: figures}
	r := startCluster(t, cfg, "gw-sites", dir, path)
	soon(t, "generation 1", k.ready("gw-sites", 1))
	west := v1alpha1.SiteHealth{Name: "west", Flows: 12, Loss: v1alpha1.LossMedium, RTTMilliseconds: 21}
	shown := func() bool {
		d := k.node("gw-sites").Status.Domains
		return len(d) == 1 && len(d[0].Sites) == 1 && d[0].Sites[0].Flows >= 12 && d[0].Sites[0].Flows <= 13 && d[0].Sites[0].Loss == west.Loss && d[0].Sites[0].RTTMilliseconds == west.RTTMilliseconds
	}
	soon(t, "the site is shown", shown)
	before := r.requests.writes()
	time.Sleep(countPeriod + 2*time.Second) // in which the figures are read again
	if n := r.requests.writes() - before; n > 0 {
		t.Errorf("%d writes for noise", n)
	}
	r.stop()

	idle := startCluster(t, cfg, "gw-sites", dir, &dataPath{}) // flows are not protected yet
	soon(t, "the API server is read", func() bool { s, _ := idle.agent.Status(false); return *s.APIConnected && s.Generation == 1 })
	time.Sleep(countPeriod + 2*time.Second) // in which a status without sites could be written
	if n := idle.requests.writes(); n > 0 || !shown() {
		t.Errorf("%d writes by an agent that started, status %+v", n, k.node("gw-sites").Status.Domains)
	}
}

// TestReadyIsTheOperatorsWithoutALease: an agent that can not renew its Lease does not write against the operator, who says that it does not report.
func TestReadyIsTheOperatorsWithoutALease(t *testing.T) {
	cfg := apiServer(t)
	k := kubernetes{t, admin(t, cfg)}
	k.create(nodeOf("gw-silent"))
	r := startCluster(t, cfg, "gw-silent", t.TempDir(), &dataPath{}, inNamespace("there-is-none"))
	time.Sleep(startSpread + 3*time.Second) // in which a status could be written
	if n := r.requests.writes(); n > 0 {
		t.Errorf("%d writes without a Lease", n)
	}
	r.stop()
	r = startCluster(t, cfg, "gw-silent", t.TempDir(), &dataPath{})
	soon(t, "with a Lease it reports", k.ready("gw-silent", 1))
	// The operator says that it does not report; the agent, which does, takes that back at once.
	body := []byte(`{"apiVersion":"crem.dev/v1alpha1","kind":"CREMNode","status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"AgentNotReporting","message":"x","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
	before := r.requests.writes()
	if err := k.Status().Patch(t.Context(), &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "gw-silent"}}, ctrl.RawPatch(types.ApplyPatchType, body), ctrl.FieldOwner(v1alpha1.FieldManagerOperator), ctrl.ForceOwnership); err != nil {
		t.Fatal(err)
	}
	soon(t, "ready again", k.ready("gw-silent", 1))
	time.Sleep(time.Second) // in which another write could come
	if n := r.requests.writes() - before; n != 1 {
		t.Errorf("%d writes to take it back", n)
	}
}
