// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"crem.dev/crem/agent/engine"
	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/internal/render"
)

// path is a DataPath that remembers what it was told.
type path struct {
	mu      sync.Mutex
	applied []*engine.Config
	fail    error
	status  agentapi.Status
}

func (p *path) Apply(cfg *engine.Config) ([]engine.ItemResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return nil, p.fail
	}
	p.applied = append(p.applied, cfg)
	return nil, nil
}

func (p *path) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (p *path) Status(bool) (agentapi.Status, []agentapi.Flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status, nil
}

func (p *path) Overview() agentapi.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

func (p *path) Healthy() []string { return nil }
func (p *path) last() (cfg *engine.Config, count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.applied) == 0 {
		return nil, 0
	}
	return p.applied[len(p.applied)-1], len(p.applied)
}

// lines is a log of lines.
type lines struct {
	mu   sync.Mutex
	text []string
}

func (l *lines) add(_, args string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, args)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.text {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

const domainText = `apiVersion: crem.dev/v1alpha1
kind: CREMDomain
metadata: {name: backbone}
spec:
  port: %d
  site: east
  ipsec: {mode: BoundaryFiltered}
  sites:
  - {name: east, cidrs: [10.1.0.0/16]}
  - {name: west, cidrs: [10.2.0.0/16]}
  profileRef: {name: standard}
`

const profileText = `apiVersion: crem.dev/v1alpha1
kind: CREMProfile
metadata: {name: standard}
spec: {k: %d}
`

func write(t *testing.T, file, format string, args ...any) {
	t.Helper()
	if err := os.WriteFile(file, fmt.Appendf(nil, format, args...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// world is an agent at work.
type world struct {
	agent  *Agent
	path   *path
	log    *lines
	reload chan struct{}
}

// start runs an agent with files until the test ends.
func start(t *testing.T, paths ...string) *world {
	t.Helper()
	w := &world{path: &path{}, log: &lines{}, reload: make(chan struct{})}
	w.agent = New(Files{Paths: paths, Facts: render.NodeFacts{Name: "gw1", Standalone: true}}, w.path, funcr.New(w.log.add, funcr.Options{}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.agent.Run(ctx, w.reload) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	w.until(t, "the first configuration is applied", func() bool { _, n := w.path.last(); return n == 1 })
	return w
}

// until waits for something that files and goroutines bring about; only a hang makes it fail.
func (w *world) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s; log:\n%s", what, strings.Join(w.log.text, "\n"))
		}
	}
}

func (w *world) portIs(port int) func() bool {
	return func() bool { cfg, _ := w.path.last(); return int(cfg.Domains[0].Port) == port }
}

// TestFilesAreWatched: every way in which files change in practice.
func TestFilesAreWatched(t *testing.T) {
	t.Run("written in place", func(t *testing.T) {
		dir := t.TempDir()
		domain, profile := filepath.Join(dir, "d.yaml"), filepath.Join(dir, "p.yaml")
		write(t, domain, domainText, 52000)
		write(t, profile, profileText, 32)
		w := start(t, domain, profile)
		write(t, profile, profileText, 16)
		w.until(t, "k is 16", func() bool {
			cfg, _ := w.path.last()
			return cfg.Domains[0].Rules[0].Profile.CSF.K == 16
		})
		if cfg, _ := w.path.last(); cfg.Generation != 2 {
			t.Errorf("generation %d", cfg.Generation)
		}
	})
	t.Run("replaced as editors do", func(t *testing.T) {
		dir := t.TempDir()
		domain := filepath.Join(dir, "d.yaml")
		write(t, domain, domainText, 52000)
		w := start(t, domain)
		for _, port := range []int{52001, 52002} { // the watch must outlive the first file
			next := filepath.Join(dir, ".d.yaml.swp")
			write(t, next, domainText, port)
			if err := os.Rename(next, domain); err != nil {
				t.Fatal(err)
			}
			w.until(t, fmt.Sprint("port is ", port), w.portIs(port))
		}
	})
	t.Run("swapped as Kubernetes does", func(t *testing.T) {
		dir := t.TempDir()
		version := func(name string, port int) {
			if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, name, "d.yaml"), domainText, port)
			if err := os.Symlink(name, filepath.Join(dir, "..data_tmp")); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
				t.Fatal(err)
			}
		}
		version("..2026_01", 52000)
		if err := os.Symlink("..data/d.yaml", filepath.Join(dir, "d.yaml")); err != nil {
			t.Fatal(err)
		}
		w := start(t, filepath.Join(dir, "d.yaml"))
		for i, port := range []int{52001, 52002, 52003} {
			version(fmt.Sprintf("..2026_%02d", i+2), port)
			w.until(t, fmt.Sprint("port is ", port), w.portIs(port)) // by the swap alone, nothing else has changed
		}
		version("..2026_05", 52004)
		for i := range 4 {
			if err := os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..2026_%02d", i+1))); err != nil {
				t.Fatal(err)
			}
		}
		w.until(t, "port is 52004", w.portIs(52004))
	})
	t.Run("added to a directory", func(t *testing.T) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "a.yaml"), domainText, 52000)
		write(t, filepath.Join(dir, "notes.txt"), "not read")
		w := start(t, dir)
		if cfg, _ := w.path.last(); len(cfg.Domains[0].Rules) != 0 {
			t.Fatalf("rules %+v", cfg.Domains[0].Rules)
		}
		w.until(t, "the missing profile is logged", func() bool { return w.log.count("ProfileNotFound") == 1 })
		write(t, filepath.Join(dir, "b.yml"), profileText, 8)
		w.until(t, "there is a rule", func() bool { cfg, _ := w.path.last(); return len(cfg.Domains[0].Rules) == 1 })
	})
	t.Run("nothing new is not applied again", func(t *testing.T) {
		dir := t.TempDir()
		domain := filepath.Join(dir, "d.yaml")
		write(t, domain, domainText, 52000)
		w := start(t, domain)
		write(t, domain, domainText, 52000)
		write(t, filepath.Join(dir, "other.yaml"), "x")
		write(t, domain, domainText, 52001)
		w.until(t, "port is 52001", w.portIs(52001))
		if cfg, n := w.path.last(); n != 2 || cfg.Generation != 2 {
			t.Errorf("applied %d times, generation %d", n, cfg.Generation)
		}
	})
	t.Run("SIGHUP applies again what is the same", func(t *testing.T) {
		domain := filepath.Join(t.TempDir(), "d.yaml")
		write(t, domain, domainText, 52000)
		w := start(t, domain)
		w.reload <- struct{}{}
		w.until(t, "applied twice", func() bool { _, n := w.path.last(); return n == 2 })
	})
}

// TestBadFileChangesNothing: the last good configuration stays, one line is logged, the status is stale until a good file comes.
func TestBadFileChangesNothing(t *testing.T) {
	domain := filepath.Join(t.TempDir(), "d.yaml")
	write(t, domain, domainText, 52000)
	w := start(t, domain)
	stale := func() string { s, _ := w.agent.Status(false); return s.ConfigStale }
	if s := stale(); s != "" {
		t.Errorf("stale from the start: %s", s)
	}

	write(t, domain, domainText, 4791)
	w.until(t, "stale", func() bool { return strings.Contains(stale(), "spec.port 4791 is the port of RoCEv2 itself") })
	w.reload <- struct{}{} // the same fault again is not news
	w.reload <- struct{}{}
	if n := w.log.count("Configuration refused"); n != 1 {
		t.Errorf("%d lines about one fault", n)
	}
	if n := w.log.count("d.yaml, document 1 (CREMDomain backbone): spec.port 4791 is the port of RoCEv2 itself: write a free port from 49152 to 65535"); n != 1 {
		t.Errorf("the line does not say where, what and what to write: %v", w.log.text)
	}
	if cfg, n := w.path.last(); n != 1 || cfg.Domains[0].Port != 52000 {
		t.Errorf("applied %d times, port %d", n, cfg.Domains[0].Port)
	}

	if err := os.Remove(domain); err != nil {
		t.Fatal(err)
	}
	w.until(t, "the missing file is noticed", func() bool { return strings.Contains(stale(), "does not exist") })
	write(t, domain, "# nothing\n")
	w.until(t, "the empty file is noticed", func() bool { return strings.Contains(stale(), "there is no CREMDomain in it") })
	write(t, domain, domainText, 52000)
	w.until(t, "no longer stale", func() bool { return stale() == "" })

	w.path.mu.Lock()
	w.path.fail = errors.New("no memory for maps")
	w.path.mu.Unlock()
	write(t, domain, domainText, 52003)
	w.until(t, "what the kernel refuses is stale too", func() bool { return strings.Contains(stale(), "apply the configuration: no memory for maps") })
	w.path.mu.Lock()
	w.path.fail = nil
	w.path.mu.Unlock()
	w.reload <- struct{}{}
	w.until(t, "port is 52003", w.portIs(52003))
}

// TestFirstStateMustBeGood: without any good configuration the program ends with sentences, and the data path was not touched.
func TestFirstStateMustBeGood(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	write(t, bad, domainText, 4791)
	profiles := filepath.Join(dir, "p.yaml")
	write(t, profiles, profileText, 32)
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, file, says string }{
		{"fault", bad, "bad.yaml, document 1 (CREMDomain backbone): spec.port 4791 is the port of RoCEv2 itself"},
		{"missing", filepath.Join(dir, "none.yaml"), "none.yaml does not exist: name a file of CREMDomain and CREMProfile documents"},
		{"no domain", profiles, "there is no CREMDomain in it: write one"},
		{"empty directory", empty, "has no file *.yaml, *.yml or *.json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &path{}
			a := New(Files{Paths: []string{tc.file}, Facts: render.NodeFacts{Name: "gw1", Standalone: true}}, p, funcr.New((&lines{}).add, funcr.Options{}))
			err := a.Run(t.Context(), nil)
			var input *InputError
			if !errors.As(err, &input) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v\nwant %s", err, tc.says)
			}
			if _, n := p.last(); n != 0 {
				t.Error("something was applied")
			}
			if unready := a.Unready(); len(unready) != 1 || !strings.Contains(unready[0], "config") {
				t.Errorf("unready %v", unready)
			}
		})
	}
	t.Run("the kernel's refusal is no fault of the files", func(t *testing.T) {
		good := filepath.Join(dir, "good.yaml")
		write(t, good, domainText, 52000)
		p := &path{fail: errors.New("operation not permitted")}
		err := New(Files{Paths: []string{good}}, p, funcr.New((&lines{}).add, funcr.Options{})).Run(t.Context(), nil)
		var input *InputError
		if err == nil || errors.As(err, &input) {
			t.Errorf("%v", err)
		}
	})
}

// TestProblemsOfItems: what is not in force is logged once each and shown in the status.
func TestProblemsOfItems(t *testing.T) {
	domain := filepath.Join(t.TempDir(), "d.yaml")
	write(t, domain, domainText+"---\n"+strings.Replace(domainText, "backbone", "second", 1), 52000, 52000)
	w := start(t, domain)
	var problems []agentapi.Problem
	w.until(t, "the problems are shown and logged", func() bool {
		s, _ := w.agent.Status(false)
		problems = s.Problems
		return len(problems) > 0 && w.log.count("Item not in force") == len(problems)
	})
	found := false
	for _, p := range problems {
		found = found || p.Object == "CREMDomain second" && p.Reason == "PortConflict" && strings.Contains(p.Message, "backbone")
	}
	if !found {
		t.Errorf("no PortConflict of second that names backbone: %+v", problems)
	}
}

// TestTransitionsAreLoggedOnce: one line when an uplink or a domain changes, none while it stays.
func TestTransitionsAreLoggedOnce(t *testing.T) {
	domain := filepath.Join(t.TempDir(), "d.yaml")
	write(t, domain, domainText, 52000)
	w := start(t, domain)
	become := func(uplinkProblem, domainProblem string) {
		w.path.mu.Lock()
		w.path.status = agentapi.Status{
			Domains: []agentapi.Domain{{Name: "backbone", Problem: domainProblem}},
			Uplinks: []agentapi.Uplink{{Name: "wan0", Problem: uplinkProblem}},
		}
		w.path.mu.Unlock()
		w.agent.Notice()
	}
	become("There is no interface of this name.", "")
	w.until(t, "the missing uplink is logged", func() bool { return w.log.count("Uplink not attached") == 1 })
	become("There is no interface of this name.", "port in use")
	w.until(t, "the domain is logged", func() bool { return w.log.count("Domain not in force") == 1 })
	become("", "port in use")
	w.until(t, "the uplink is logged again", func() bool { return w.log.count("Uplink attached") == 1 })
	w.path.mu.Lock()
	w.path.status = agentapi.Status{Domains: []agentapi.Domain{{Name: "backbone"}}}
	w.path.mu.Unlock()
	w.agent.Notice()
	w.until(t, "what is gone is logged", func() bool { return w.log.count("No longer in force") == 1 && w.log.count("Domain in force") == 2 })
	if n := w.log.count("Uplink not attached") + w.log.count("Domain not in force"); n != 2 {
		t.Errorf("%d lines about two problems", n)
	}
}
