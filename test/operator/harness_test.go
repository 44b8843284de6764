// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"crem.dev/crem/api/v1alpha1"
	crem "crem.dev/crem/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"crem.dev/crem/controllers"
	"crem.dev/crem/test/kubeassets"
)

const (
	namespace = "crem-system"
	patience  = 30 * time.Second // of a busy machine; the guarantees' own times are checked where they matter
)

var (
	server *rest.Config // nil: no API server here
	api    client.Client
	admin  *envtest.AuthenticatedUser
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	log := logr.Discard()
	if os.Getenv("CREM_TEST_LOG") != "" {
		log = logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	assets, err := kubeassets.Dir()
	if err != nil && kubeassets.Required() {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err == nil {
		env := &envtest.Environment{BinaryAssetsDirectory: assets, CRDDirectoryPaths: []string{"../../config/crd/bases"}, ErrorIfCRDPathMissing: true,
			ControlPlaneStartTimeout: 2 * time.Minute, ControlPlaneStopTimeout: time.Minute}
		if server, err = env.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = env.Stop() }()
		server.QPS, server.Burst = -1, 0
		if api, err = client.New(server, client.Options{Scheme: controllers.Scheme()}); err == nil {
			err = api.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
		}
		if err == nil {
			admin, err = env.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	defer func() {
		if built != "" {
			_ = os.RemoveAll(built)
		}
	}()
	return m.Run()
}

// clean skips without an API server, and otherwise leaves none of a test's objects to the next one.
func clean(t *testing.T) {
	t.Helper()
	if server == nil {
		t.Skip(kubeassets.Missing)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		for _, obj := range []client.Object{&v1alpha1.CREMDomain{}, &v1alpha1.CREMProfile{}, &v1alpha1.CREMNode{}, &v1alpha1.CREMEndpointSlice{}, &corev1.Node{}} {
			if err := api.DeleteAllOf(ctx, obj); err != nil {
				t.Error(err)
			}
		}
		for _, obj := range []client.Object{&coordinationv1.Lease{}} {
			if err := api.DeleteAllOf(ctx, obj, client.InNamespace(namespace)); err != nil {
				t.Error(err)
			}
		}
	})
}

// request is one request that changes something.
type request struct{ method, path string }

// recorder is a transport that remembers what was written.
type recorder struct {
	next http.RoundTripper
	mu   *sync.Mutex
	list *[]request
}

func (r recorder) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method != http.MethodGet {
		r.mu.Lock()
		*r.list = append(*r.list, request{method: q.Method, path: q.URL.Path})
		r.mu.Unlock()
	}
	return r.next.RoundTrip(q)
}

// running is a running operator.
type running struct {
	mu     sync.Mutex
	writes []request
	stop   func()
}

// quick are options for tests, short where a test would wait.
func quick() controllers.Options {
	o := controllers.Defaults(namespace)
	o.NodeDelay, o.SliceDelay = 50*time.Millisecond, 100*time.Millisecond
	o.StatusQuiet, o.StatusMost = 200*time.Millisecond, time.Second
	o.Hold = time.Second
	o.SitePeriod = 8 * time.Second
	return o
}

// start runs the operator until the test ends, or stop is called.
func start(t *testing.T, o controllers.Options, change ...func(*ctrl.Options)) *running {
	t.Helper()
	r := &running{}
	cfg := rest.CopyConfig(server)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return recorder{next, &r.mu, &r.writes} })
	resync, again, grace := 10*time.Hour, true, 10*time.Second
	options := ctrl.Options{Scheme: controllers.Scheme(), Cache: controllers.CacheOptions(o), Metrics: metricsserver.Options{BindAddress: "0"}, GracefulShutdownTimeout: &grace}
	options.Cache.SyncPeriod = &resync
	options.Controller.SkipNameValidation = &again
	for _, c := range change {
		c(&options)
	}
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		t.Fatal(err)
	}
	if err := controllers.Add(mgr, o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("operator: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// written gives the writes so far, but those to Leases and events.
func (r *running) written() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []request
	for _, q := range r.writes {
		if !strings.Contains(q.path, "/leases") && !strings.Contains(q.path, "/events") {
			list = append(list, q)
		}
	}
	return list
}

// within waits until check gives no error.
func within(t *testing.T, limit time.Duration, check func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("after %s: %v", limit, err)
}

// settle waits until the operator has written nothing for a while.
func (r *running) settle(t *testing.T) {
	t.Helper()
	last, since := -1, time.Now()
	within(t, 2*patience, func() error {
		if n := len(r.written()); n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) < 3*time.Second {
			return errors.New("the operator still writes")
		}
		return nil
	})
}

func create(t *testing.T, objs ...client.Object) {
	t.Helper()
	for _, obj := range objs {
		if err := api.Create(t.Context(), obj); err != nil {
			t.Fatalf("%T %s: %v", obj, obj.GetName(), err)
		}
	}
}

// change gets an object, lets edit change it and updates it.
func change[T client.Object](t *testing.T, obj T, edit func(T)) T {
	t.Helper()
	within(t, patience, func() error {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		edit(obj)
		return api.Update(t.Context(), obj)
	})
	return obj
}

func remove(t *testing.T, objs ...client.Object) {
	t.Helper()
	for _, obj := range objs {
		if err := api.Delete(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
}

// node makes a Node with 30 labels of others beside the given one.
func node(name string, label ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for i := range 30 {
		n.Labels[fmt.Sprintf("example.test/label-%d", i)] = "x"
	}
	for _, l := range label {
		key, value, _ := strings.Cut(l, "=")
		n.Labels[key] = value
	}
	return n
}

// domain makes a domain of two sites on the nodes that a selector chooses.
func domain(name string, port int32, uplink v1alpha1.InterfaceName, selector *metav1.LabelSelector) *v1alpha1.CREMDomain {
	d := &v1alpha1.CREMDomain{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.CREMDomainSpec{
		Port: port, Site: "east", IPsec: v1alpha1.IPsec{Mode: v1alpha1.IPsecBoundaryFiltered},
		Sites: []v1alpha1.Site{{Name: "east", CIDRs: []v1alpha1.CIDR{"10.1.0.0/16"}}, {Name: "west", CIDRs: []v1alpha1.CIDR{"10.2.0.0/16"}}},
		Nodes: &v1alpha1.DomainNodes{Selector: selector, Uplinks: []v1alpha1.InterfaceName{uplink}},
	}}
	return d
}

// kubeconfig is a file with the administrator's access.
func kubeconfig(t *testing.T) string {
	t.Helper()
	text, err := admin.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func labelled(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func profile(name string) *v1alpha1.CREMProfile {
	return &v1alpha1.CREMProfile{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// domainsOf gives the names of the domains in a node's share.
func domainsOf(t *testing.T, name string) (string, error) {
	var n v1alpha1.CREMNode
	if err := api.Get(t.Context(), client.ObjectKey{Name: name}, &n); err != nil {
		return "", err
	}
	var names []string
	for _, d := range n.Spec.Domains {
		names = append(names, string(d.Name))
	}
	return strings.Join(names, ","), nil
}

func wantDomains(t *testing.T, node, want string) func() error {
	return func() error {
		if got, err := domainsOf(t, node); err != nil || got != want {
			return errors.Join(fmt.Errorf("CREMNode %s has %q, not %q", node, got, want), err)
		}
		return nil
	}
}

// condition gives a condition as STATUS/REASON.
func condition(list []metav1.Condition, kind string) string {
	for _, c := range list {
		if c.Type == kind {
			return string(c.Status) + "/" + c.Reason
		}
	}
	return ""
}

func wantDomain(t *testing.T, name string, want map[string]string) func() error {
	return func() error {
		var d v1alpha1.CREMDomain
		if err := api.Get(t.Context(), client.ObjectKey{Name: name}, &d); err != nil {
			return err
		}
		if d.Status.ObservedGeneration != d.Generation {
			return fmt.Errorf("domain %s: status of generation %d, not %d", name, d.Status.ObservedGeneration, d.Generation)
		}
		for kind, value := range want {
			if got := condition(d.Status.Conditions, kind); got != value {
				return fmt.Errorf("domain %s: %s is %q, not %q (%+v)", name, kind, got, value, d.Status)
			}
		}
		return nil
	}
}

// report writes what the agent of a node would: its Lease and a status of the newest generation.
func report(t *testing.T, name string, ready metav1.ConditionStatus, reason string, sites ...v1alpha1.SiteHealth) {
	t.Helper()
	heartbeat(t, name, time.Now())
	state(t, name, ready, reason, sites...)
}

// state writes the status that the agent of a node would, of the newest generation.
func state(t *testing.T, name string, ready metav1.ConditionStatus, reason string, sites ...v1alpha1.SiteHealth) {
	t.Helper()
	within(t, patience, func() error {
		var n v1alpha1.CREMNode
		if err := api.Get(t.Context(), client.ObjectKey{Name: name}, &n); err != nil {
			return err
		}
		when := metav1.Now()
		s := crem.CREMNodeStatus().WithObservedGeneration(n.Generation).WithAppliedGeneration(n.Generation).
			WithConditions(metav1ac.Condition().WithType(v1alpha1.ConditionReady).WithStatus(ready).WithReason(reason).WithMessage("as the test says").WithLastTransitionTime(when).WithObservedGeneration(n.Generation))
		for _, d := range n.Spec.Domains {
			item := crem.NodeItemStatus().WithName(d.Name).WithProgrammed(true).WithReason(v1alpha1.ReasonApplied)
			for _, one := range sites {
				item.WithSites(crem.SiteHealth().WithName(one.Name).WithFlows(one.Flows).WithLoss(one.Loss).WithRTTMilliseconds(one.RTTMilliseconds).WithRepairsSuspended(one.RepairsSuspended))
			}
			s.WithDomains(item)
		}
		return api.Status().Apply(t.Context(), crem.CREMNode(name).WithStatus(s), client.FieldOwner(v1alpha1.FieldManagerAgent), client.ForceOwnership)
	})
}

// heartbeat writes the Lease of a node's agent.
func heartbeat(t *testing.T, name string, when time.Time) {
	t.Helper()
	heartbeatFor(t, name, when, v1alpha1.LeaseDuration)
}

// heartbeatFor writes a Lease that is in force for a while: thousands of agents renew theirs more often than one test can.
func heartbeatFor(t *testing.T, name string, when time.Time, duration time.Duration) {
	t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	seconds, renewed := int32(duration/time.Second), metav1.NewMicroTime(when)
	err := api.Get(t.Context(), client.ObjectKeyFromObject(lease), lease)
	lease.Labels = map[string]string{v1alpha1.ComponentLabel: v1alpha1.ComponentAgent}
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &renewed}
	if client.IgnoreNotFound(err) == nil && err != nil {
		err = api.Create(t.Context(), lease)
	} else if err == nil {
		err = api.Update(t.Context(), lease)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func repository(elem ...string) string {
	return filepath.Join(append([]string{"..", ".."}, elem...)...)
}
