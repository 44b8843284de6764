// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"crem.dev/crem/agent/probe"
	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/internal/render"
)

// ClusterOptions are what an agent in a cluster is started with.
type ClusterOptions struct {
	Node      string // name of the Node, and of its CREMNode and Lease
	Namespace string // of the Lease
	Version   string
	StateDir  string // where the last good configuration is kept
	API       *rest.Config
	Path      DataPath
	Log       logr.Logger
	Probe     func() *probe.Report // what this kernel can do
	Sys       fs.FS                // /sys; nil: the real one
}

// Times of a cluster agent.
const (
	settleChanges = 100 * time.Millisecond // changes that come together are applied together
	lookPeriod    = time.Second            // between looks at the data path
	countPeriod   = 10 * time.Second       // between looks at its counters, which cost the packet workers time
	startGrace    = 5 * time.Second        // that workers may take to start before it is reported
	startSpread   = 2 * time.Second        // within which agents that start together ask the API server first
	applyPause    = 2 * time.Second        // before a configuration that failed is tried again, longer each time
	applyPauses   = time.Minute            // at the most
)

// Cluster keeps a data path together with the CREMNode that the API server has for this node. What was applied last is kept on disk and applied first, so
// that nothing waits for the API server.
type Cluster struct {
	o        ClusterOptions
	log      logr.Logger
	store    store
	bootID   string
	client   *client
	source   *source
	reporter *reporter
	noticed  chan struct{} // something that Status shows has changed
	changed  chan struct{} // the API server may have something new
	drifts   chan []string // what was repaired in the kernel, to be told

	said    transitions
	visible visibility
	born    time.Time
	since   time.Time // when the data path was started
	counted time.Time // when its counters were read last
	mtu     agentapi.MTUTooSmall
	hidden  bool // RDMA traffic passes by the agent
	sites   siteView
	pause   time.Duration
	retry   time.Time // a configuration that failed is tried again then

	mu       sync.Mutex // guards what follows
	report   *probe.Report
	applied  *Desired // what the data path was given last without error
	old      bool     // applied is from the disk copy
	tried    *Desired // what it was given last
	wanted   *Desired // what the API server wants
	problems []render.Problem
	failure  error // of the last attempt
}

// NewCluster makes an agent. Nothing is read and no connection made before Run.
func NewCluster(o ClusterOptions) (*Cluster, error) {
	c, err := newClient(o.API, o.Version)
	if err != nil {
		return nil, err
	}
	if o.Sys == nil {
		o.Sys = os.DirFS("/sys")
	}
	a := &Cluster{
		o: o, log: o.Log, store: store{dir: o.StateDir, node: o.Node}, bootID: bootID(), client: c,
		reporter: newReporter(c, o.Node, o.Log), noticed: make(chan struct{}, 1), changed: make(chan struct{}, 1), drifts: make(chan []string, 1),
		said: transitions{log: o.Log}, visible: visibility{sys: o.Sys}, born: time.Now(),
	}
	a.source = &source{client: c.crem, node: o.Node, log: o.Log, changed: func() { poke(a.changed) }}
	return a, nil
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is waiting already
	}
}

// Notice tells that something that the data path's Status shows has changed. It may be called at any time and never blocks.
func (c *Cluster) Notice() { poke(c.noticed) }

// Run applies the copy on disk, then what the API server has, and whatever it has later, until ctx ends. reload applies it again. The error is that of the
// data path: an API server that does not answer is no error, however long.
func (c *Cluster) Run(ctx context.Context, reload <-chan struct{}) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel(nil)
	c.recall()
	running.Go(func() {
		sleep(ctx, rand.N(startSpread))
		c.source.start(ctx)
		running.Go(func() { keepLease(ctx, c.client, c.o.Namespace, c.o.Node, c.reporter.renewed, c.log) })
		c.reporter.run(ctx)
	})
	running.Go(func() { c.tellDrifts(ctx) })
	running.Go(c.look)
	ended := make(chan error, 1)
	tick := time.NewTicker(lookPeriod)
	defer tick.Stop()
	force := false
	for {
		c.reconcile(force)
		if c.since.IsZero() && c.inForce() != nil {
			c.since = time.Now()
			go func() { ended <- c.o.Path.Run(ctx) }()
		}
		c.tell()
		force = false
		select {
		case <-ctx.Done():
			if c.since.IsZero() {
				return nil
			}
			return pathError(<-ended)
		case err := <-ended:
			return pathError(err)
		case <-c.changed:
			sleep(ctx, settleChanges)
		case <-reload:
			force = true
		case <-c.noticed:
		case <-tick.C:
		}
	}
}

func pathError(err error) error {
	if err != nil {
		return fmt.Errorf("data path: %w", err)
	}
	return nil
}

func (c *Cluster) inForce() *Desired {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.applied
}

// look finds out what this node can do.
func (c *Cluster) look() {
	if c.o.Probe == nil {
		return
	}
	r := c.o.Probe()
	c.mu.Lock()
	c.report = r
	c.mu.Unlock()
	c.Notice()
}

// recall applies the copy on disk. It may be old: nothing that is in the kernel already is removed because of it.
func (c *Cluster) recall() {
	last, err := c.store.load()
	switch {
	case err != nil:
		c.log.Info("Copy of the last good configuration not used", "problem", err.Error())
		return
	case last == nil:
		c.log.Info("No copy of an earlier configuration, waiting for the API server", "folder", c.o.StateDir)
		return
	}
	c.log.Info("Last good configuration from disk", "generation", last.Desired.Generation, "domains", len(last.Desired.Spec.Domains), "nodeRestarted", last.BootID != c.bootID)
	c.apply(&last.Desired, true)
}

// reconcile applies what the API server wants if it is new, failed before, or is asked for by force.
func (c *Cluster) reconcile(force bool) {
	node, endpoints, complete := c.source.observe()
	if complete {
		d := desire(c.o.Node, node, endpoints)
		c.mu.Lock()
		c.wanted = d
		c.mu.Unlock()
		if node != nil && c.sites.recall(time.Now(), node.Status.Domains) {
			c.tell() // before the reporter compares what it should say with what it said
		}
		c.reporter.observed(node)
	}
	c.mu.Lock()
	want, applied, old, failed := c.wanted, c.applied, c.old, c.failure != nil
	c.mu.Unlock()
	switch {
	case want == nil && force && applied != nil:
		c.apply(applied, true)
	case want == nil:
	case failed && !force && c.tried != nil && c.tried.digest() == want.digest() && time.Now().Before(c.retry):
	case force, failed, old, applied == nil, applied.digest() != want.digest():
		c.apply(want, false)
	}
}

// apply gives a configuration to the data path. What is reported later is this one, whatever the API server has by then.
func (c *Cluster) apply(d *Desired, old bool) {
	cfg, problems := d.config()
	cfg.Provisional = old
	_, err := c.o.Path.Apply(cfg)
	c.mu.Lock()
	again := c.failure != nil && err != nil && c.failure.Error() == err.Error()
	c.tried, c.failure, c.problems = d, err, problems
	if err == nil {
		c.applied, c.old = d, old
	}
	c.mu.Unlock()
	if err != nil {
		c.pause = min(max(2*c.pause, applyPause), applyPauses)
		c.retry = time.Now().Add(c.pause)
		if !again {
			c.log.Error(err, "Configuration not applied, it is tried again", "generation", d.Generation)
		}
		return
	}
	c.pause = 0
	c.log.Info("Configuration applied", "generation", d.Generation, "domains", len(cfg.Domains), "profiles", len(d.Spec.Profiles), "fromDisk", old)
	for _, p := range problems {
		c.log.Info("Item not in force", "object", p.Object.String(), "reason", p.Reason, "problem", p.Message)
	}
	if old {
		return
	}
	if err := c.store.save(d, c.bootID); err != nil {
		c.log.Error(err, "Configuration not saved: an agent that starts while the API server is away will use an older one", "folder", c.o.StateDir)
	}
}

// tell logs transitions and gives the reporter what it should say.
func (c *Cluster) tell() {
	path := agentapi.Status{}
	if !c.since.IsZero() {
		path = c.o.Path.Overview()
		c.said.say(&path)
		c.count()
		path.MTUTooSmall = c.mtu
	}
	c.mu.Lock()
	f := facts{desired: c.tried, problems: c.problems, failure: c.failure, path: path, probe: c.report, hidden: c.hidden, sites: c.sites, bootID: c.bootID, version: c.o.Version}
	waits := c.o.Probe != nil && c.report == nil
	c.mu.Unlock()
	if f.desired == nil || f.desired.UID == "" || waits {
		return
	}
	s := f.status()
	if time.Since(c.since) < startGrace && c.starting(&path) {
		return
	}
	c.reporter.want(f.desired.UID, s)
}

// count looks at counters now and then.
func (c *Cluster) count() {
	if time.Since(c.counted) < countPeriod {
		return
	}
	c.counted = time.Now()
	s, _ := c.o.Path.Status(false)
	c.mtu, c.hidden = s.MTUTooSmall, c.visible.look(time.Since(c.born), seenPackets(&s))
	c.sites.look(c.counted, s.Sites)
	c.said.suspensions(s.Sites)
}

// starting reports whether workers have not moved yet.
func (c *Cluster) starting(path *agentapi.Status) bool {
	return slices.ContainsFunc(path.Workers, func(w agentapi.Worker) bool { return w.LastBeatAge > stalledAfter })
}

// Status is the data path's, with what this package knows of the configuration.
func (c *Cluster) Status(withFlows bool) (agentapi.Status, []agentapi.Flow) {
	status, flows := c.o.Path.Status(withFlows)
	connected := c.source.answers()
	status.APIConnected = &connected
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wanted != nil {
		status.Generation = c.wanted.Generation
	}
	if c.failure != nil {
		status.ConfigStale = c.failure.Error()
	}
	for _, p := range c.problems {
		status.Problems = append(status.Problems, agentapi.Problem{Object: p.Object.String(), Reason: p.Reason, Message: p.Message})
	}
	return status, flows
}

// Unready names every check that keeps the node from being ready; none when it is: what the API server wants, or what is known of it while it does not
// answer, is in the data path, and packets pass.
func (c *Cluster) Unready() []string {
	c.mu.Lock()
	wanted, applied, failure := c.wanted, c.applied, c.failure
	c.mu.Unlock()
	var bad []string
	switch {
	case failure != nil:
		bad = append(bad, "config: "+failure.Error())
	case applied == nil:
		return []string{"config: no configuration applied yet: the API server has not answered, and there is no copy of an earlier one"}
	case wanted != nil && wanted.Generation != applied.Generation:
		bad = append(bad, fmt.Sprintf("config: generation %d is wanted, %d is in the data path", wanted.Generation, applied.Generation))
	}
	if applied != nil {
		bad = append(bad, c.o.Path.Healthy()...)
	}
	return bad
}
