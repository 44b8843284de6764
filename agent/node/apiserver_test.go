// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"crem.dev/crem/agent/engine"
	"crem.dev/crem/agent/probe"
	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/test/kubeassets"
)

// shared is the API server of most tests here: one start for all of them.
var shared struct {
	once sync.Once
	env  *envtest.Environment
	cfg  *rest.Config
	err  error
}

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // of what starts the API server
	code := m.Run()
	if shared.env != nil {
		if err := shared.env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the API server:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// apiServer is a real API server with this project's kinds.
func apiServer(t *testing.T) *rest.Config {
	t.Helper()
	dir, err := kubeassets.Dir()
	switch {
	case err != nil && kubeassets.Required():
		t.Fatal(err)
	case err != nil:
		t.Skip(err)
	}
	shared.once.Do(func() {
		shared.env = &envtest.Environment{BinaryAssetsDirectory: dir, CRDDirectoryPaths: []string{"../../config/crd/bases"}}
		shared.cfg, shared.err = shared.env.Start()
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.cfg
}

// admin is a client that may do everything.
func admin(t *testing.T, cfg *rest.Config) ctrl.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := ctrl.New(cfg, ctrl.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// requests counts what an agent asks of the API server.
type requests struct {
	mu  sync.Mutex
	all []string // method and URL
}

func (r *requests) wrap(cfg *rest.Config) *rest.Config {
	c := rest.CopyConfig(cfg)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(q *http.Request) (*http.Response, error) {
			r.mu.Lock()
			r.all = append(r.all, q.Method+" "+q.URL.RequestURI())
			r.mu.Unlock()
			return next.RoundTrip(q)
		})
	})
	return c
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// writes are the requests that change something, except Leases.
func (r *requests) writes() (n int) {
	for _, q := range r.matching("") {
		if !strings.HasPrefix(q, "GET ") && !strings.Contains(q, "/leases/") {
			n++
		}
	}
	return n
}

func (r *requests) matching(part string) (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.all {
		if strings.Contains(q, part) {
			list = append(list, q)
		}
	}
	return list
}

// dataPath stands for the engine: it obeys, and says so as the engine does.
type dataPath struct {
	mu      sync.Mutex
	applied []*engine.Config
	gate    map[int64]chan struct{} // Apply of this generation waits
	fail    error
	beat    float64 // age of the worker's heartbeat
	change  func(*agentapi.Status)
	running bool
	ended   bool
}

func (p *dataPath) Apply(cfg *engine.Config) ([]engine.ItemResult, error) {
	p.mu.Lock()
	gate := p.gate[cfg.Generation]
	p.mu.Unlock()
	if gate != nil {
		<-gate
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return nil, p.fail
	}
	p.applied = append(p.applied, cfg)
	return nil, nil
}

func (p *dataPath) Run(ctx context.Context) error {
	p.mu.Lock()
	p.running = true
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	return nil
}

func (p *dataPath) Status(bool) (agentapi.Status, []agentapi.Flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := agentapi.Status{Workers: []agentapi.Worker{{LastBeatAge: p.beat}}, Counters: map[string]uint64{}, Memory: agentapi.Memory{Limit: 1 << 30}}
	if len(p.applied) == 0 {
		return s, nil
	}
	cfg := p.applied[len(p.applied)-1]
	s.Generation, s.AppliedGeneration = cfg.Generation, cfg.Generation
	for _, d := range cfg.Domains {
		s.Domains = append(s.Domains, agentapi.Domain{Name: d.Name, Port: d.Port, Site: d.Site, Applied: true, Reason: "Applied", Security: "NotRequired"})
		for _, u := range d.Uplinks {
			s.Uplinks = append(s.Uplinks, agentapi.Uplink{Name: u, MTU: 9000, Attached: true, Reason: "Applied", Why: "It is named in the domain's uplinks."})
		}
	}
	if p.change != nil {
		p.change(&s)
	}
	return s, nil
}

func (p *dataPath) Overview() agentapi.Status {
	s, _ := p.Status(false)
	s.Counters, s.MTUTooSmall = nil, agentapi.MTUTooSmall{}
	return s
}

func (p *dataPath) Healthy() []string { return nil }

func (p *dataPath) last() (cfg *engine.Config, count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.applied) == 0 {
		return nil, 0
	}
	return p.applied[len(p.applied)-1], len(p.applied)
}

func (p *dataPath) set(f func(*dataPath)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p)
}

// running is a cluster agent at work.
type running struct {
	agent    *Cluster
	path     *dataPath
	log      *lines
	requests *requests
	reload   chan struct{}
	stop     func()
}

// startCluster runs an agent until the test ends or stop is called.
func startCluster(t *testing.T, cfg *rest.Config, node, dir string, path *dataPath, more ...func(*ClusterOptions)) *running {
	t.Helper()
	r := &running{path: path, log: &lines{}, requests: &requests{}, reload: make(chan struct{})}
	o := ClusterOptions{
		Node: node, Namespace: "default", Version: "v0.0.0-test", StateDir: dir, API: r.requests.wrap(cfg), Path: path,
		Log: funcr.New(r.log.add, funcr.Options{}), Sys: fstest.MapFS{},
		Probe: func() *probe.Report {
			return &probe.Report{Kernel: "6.18", Features: []probe.Check{{Name: "GFNI and AVX-512", State: probe.Missing, Without: "coding is slower"}}}
		},
	}
	for _, f := range more {
		f(&o)
	}
	var err error
	if r.agent, err = NewCluster(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.agent.Run(ctx, r.reload) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("Run does not end")
		}
	})
	t.Cleanup(func() {
		r.stop()
		if t.Failed() {
			t.Logf("log of the agent:\n%s", strings.Join(r.log.text, "\n"))
		}
	})
	return r
}

func inNamespace(name string) func(*ClusterOptions) {
	return func(o *ClusterOptions) { o.Namespace = name }
}

// soon waits for what goroutines and the API server bring about; only a hang makes it fail.
func soon(t *testing.T, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for ; !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 40*time.Second {
			t.Fatalf("not within 40 s: %s", what)
		}
	}
	return time.Since(start)
}
