// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-logr/logr"

	"crem.dev/crem/agent/engine"
	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/internal/render"
)

// DataPath is the engine as this package needs it.
type DataPath interface {
	Apply(cfg *engine.Config) ([]engine.ItemResult, error)
	Run(ctx context.Context) error
	Overview() agentapi.Status // what costs the packet workers nothing: no counters, no flows
	Status(withFlows bool) (agentapi.Status, []agentapi.Flow)
	Healthy() []string
}

// InputError is what a person must correct in the files; everything else is the node's.
type InputError struct{ Err error }

// Error gives a line for each fault.
func (e *InputError) Error() string { return e.Err.Error() }

// Unwrap gives the faults.
func (e *InputError) Unwrap() error { return e.Err }

// Agent keeps a data path together with the files that say what it should do.
type Agent struct {
	files Files
	path  DataPath
	log   logr.Logger

	noticed chan struct{} // something that Status shows has changed

	mu         sync.Mutex // guards what follows
	generation int64      // of the last good configuration
	digest     [sha256.Size]byte
	problems   []render.Problem
	stale      string // why the files are not in force; empty when they are
}

// New makes an agent. Nothing is read before Start.
func New(files Files, path DataPath, log logr.Logger) *Agent {
	return &Agent{files: files, path: path, log: log, noticed: make(chan struct{}, 1)}
}

// Notice tells that something that the data path's Status shows has changed. It may be called at any time and never blocks.
func (a *Agent) Notice() {
	select {
	case a.noticed <- struct{}{}:
	default: // one is waiting already
	}
}

// Drifted logs what somebody else had changed in the kernel. It may be called at any time and never blocks.
func (a *Agent) Drifted(found []string) { logDrift(a.log, found) }

// Run reads and applies the files, runs the data path, and applies the files again whenever they change or reload receives, until
// ctx ends. The first state of the files must be good, otherwise the error is an *InputError; a later bad one
// changes nothing.
func (a *Agent) Run(ctx context.Context, reload <-chan struct{}) error {
	if err := a.reload(true); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	changes := make(chan struct{}, 1)
	notify := func() {
		select {
		case changes <- struct{}{}:
		default: // one is waiting already
		}
	}
	var running sync.WaitGroup
	running.Go(func() {
		if err := a.files.watch(ctx, notify); err != nil {
			a.log.Error(err, "Configuration files are not watched, send SIGHUP after a change")
		}
	})
	running.Go(func() {
		t := transitions{log: a.log}
		for {
			select {
			case <-ctx.Done():
				return
			case <-a.noticed:
				status := a.path.Overview()
				t.say(&status)
			}
		}
	})
	running.Go(func() {
		for {
			forced := false
			select {
			case <-ctx.Done():
				return
			case <-changes:
			case <-reload:
				forced = true
			}
			_ = a.reload(forced) // logged and kept as stale
		}
	})
	err := a.path.Run(ctx)
	cancel(err)
	running.Wait()
	if err != nil {
		return fmt.Errorf("data path: %w", err)
	}
	return nil
}

// reload reads the files and applies them if they are good and, unless forced, different.
func (a *Agent) reload(forced bool) error {
	files, err := ReadFiles(a.files.Paths)
	if err != nil {
		return a.refuse(&InputError{err})
	}
	digest := digestOf(files)
	a.mu.Lock()
	same := a.generation > 0 && a.digest == digest && a.stale == ""
	generation := a.generation + 1
	a.mu.Unlock()
	if same && !forced {
		return nil
	}
	loaded, err := a.files.judge(files, generation)
	if err != nil {
		return a.refuse(&InputError{err})
	}
	if _, err := a.path.Apply(loaded.Config); err != nil {
		return a.refuse(fmt.Errorf("apply the configuration: %w", err))
	}
	a.mu.Lock()
	a.generation, a.digest, a.stale = generation, digest, ""
	a.problems = loaded.Problems
	a.mu.Unlock()
	a.report(loaded)
	a.Notice()
	return nil
}

// refuse keeps the last good configuration in force and says why the files are not.
func (a *Agent) refuse(err error) error {
	a.mu.Lock()
	again := a.stale == err.Error()
	a.stale = err.Error()
	first := a.generation == 0
	a.mu.Unlock()
	var faults render.Faults
	switch {
	case first: // the caller ends the program with it
	case again: // said already
	case errors.As(err, &faults):
		a.log.Info("Configuration refused, the last good one stays in force", "fault", faults[0].Error(), "moreFaults", len(faults)-1)
	default:
		a.log.Info("Configuration refused, the last good one stays in force", "fault", err.Error())
	}
	return err
}

// report logs what came of a configuration: one line, and one for each object that is not wholly in force. What became of uplinks
// and ports is said by transitions.
func (a *Agent) report(loaded *Loaded) {
	a.log.Info("Configuration applied", "generation", loaded.Config.Generation, "domains", len(loaded.Config.Domains), "profiles", len(loaded.Spec.Profiles))
	for _, p := range loaded.Problems {
		a.log.Info("Item not in force", "object", p.Object.String(), "reason", p.Reason, "problem", p.Message)
	}
}

// Status is the data path's, with what this package knows of the configuration.
func (a *Agent) Status(withFlows bool) (agentapi.Status, []agentapi.Flow) {
	status, flows := a.path.Status(withFlows)
	a.mu.Lock()
	defer a.mu.Unlock()
	status.ConfigStale = a.stale
	for _, p := range a.problems {
		status.Problems = append(status.Problems, agentapi.Problem{Object: p.Object.String(), Reason: p.Reason, Message: p.Message})
	}
	return status, flows
}

// Unready names every check that keeps the node from being ready; none when it is. What is stale does not count: the last good
// configuration protects.
func (a *Agent) Unready() []string {
	a.mu.Lock()
	started := a.generation > 0
	a.mu.Unlock()
	if !started {
		return []string{"config: no configuration applied yet"}
	}
	return slices.Clone(a.path.Healthy())
}

func digestOf(files []render.File) [sha256.Size]byte {
	h := sha256.New()
	for _, f := range files {
		_, _ = fmt.Fprintf(h, "%d %s %d\n", len(f.Name), f.Name, len(f.Data))
		_, _ = h.Write(f.Data)
	}
	return [sha256.Size]byte(h.Sum(nil))
}
