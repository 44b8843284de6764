// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/served"
)

// Pauses after a write that failed.
const (
	leastPause = time.Second
	mostPause  = time.Minute
)

// fieldsPeriod is the least time between two questions which fields the API server knows.
const fieldsPeriod = 10 * time.Minute

// reporter writes the status of this node's CREMNode, when it differs, the pace allows it and the node's Lease is in force. When it is not, the condition Ready is the
// operator's, who says that this agent does not report.
type reporter struct {
	client *client
	node   string
	log    logr.Logger
	wake   chan struct{}

	mu     sync.Mutex
	live   *v1alpha1.CREMNode // as the API server has it; nil: there is none
	wanted *v1alpha1.CREMNodeStatus
	uid    types.UID // of the object that wanted is about
	pace   pacer
	pause  time.Duration
	retry  time.Time // not before this after a failure
	failed bool
	leased time.Time // until when the Lease is in force

	// What the API server knows of CREMNode is asked for when it refuses a field, and again while it lacks one: its custom resource definitions may be older
	// than this agent.
	fields *served.Fields
	asked  time.Time                // the last time; zero: never
	whole  *v1alpha1.CREMNodeStatus // wanted, with what the API server does not know
}

func newReporter(c *client, node string, log logr.Logger) *reporter {
	return &reporter{client: c, node: node, log: log, wake: make(chan struct{}, 1)}
}

// observed takes the object as the watch has it; nil: there is none. What is older than what a write has answered is no news.
func (r *reporter) observed(n *v1alpha1.CREMNode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n != nil && r.live != nil && n.UID == r.live.UID {
		if order, err := resourceversion.CompareResourceVersion(n.ResourceVersion, r.live.ResourceVersion); err == nil && order <= 0 {
			return
		}
	}
	r.live = n
	r.poke()
}

// want sets the status to report about the object with this UID.
func (r *reporter) want(uid types.UID, s v1alpha1.CREMNodeStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uid, r.whole = uid, &s
	r.wanted = r.known(&s)
	if r.live != nil && r.live.UID == uid {
		if _, differs := r.pace.due(time.Now(), &r.live.Status, r.wanted); differs {
			r.poke()
		}
	}
}

// known is what the API server can be told of a status.
func (r *reporter) known(s *v1alpha1.CREMNodeStatus) *v1alpha1.CREMNodeStatus {
	kept, err := served.Status(r.fields, v1alpha1.KindNode, *s)
	if err != nil {
		return s
	}
	return &kept
}

// askFields asks which fields the API server knows, unless that was asked lately, and reports whether the answer is another one. It must be called without the lock.
func (r *reporter) askFields(ctx context.Context) bool {
	now := time.Now()
	if !r.asked.IsZero() && now.Sub(r.asked) < fieldsPeriod {
		return false
	}
	r.asked = now
	fields, err := served.Read(ctx, r.client.crem)
	if err != nil || slices.Equal(fields.Missing(), r.fields.Missing()) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fields = fields
	if r.whole != nil {
		r.wanted = r.known(r.whole)
	}
	mine := slices.DeleteFunc(slices.Clone(fields.Missing()), func(s string) bool { return !strings.HasPrefix(s, v1alpha1.KindNode+" status.") })
	r.log.Info("What the API server knows of the status of a CREMNode is another now; what it lacks is not reported", "missing", strings.Join(mine, ", "), "todo", served.Install)
	return true
}

// refusesField reports whether the API server does not know a field.
func refusesField(err error) bool {
	return err != nil && strings.Contains(err.Error(), "field not declared in schema")
}

// renewed tells that the Lease was renewed.
func (r *reporter) renewed(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	over := !time.Now().Before(r.leased)
	r.leased = at.Add(v1alpha1.LeaseDuration)
	if over {
		r.poke()
	}
}

func (r *reporter) poke() {
	select {
	case r.wake <- struct{}{}:
	default: // one is waiting already
	}
}

// run writes until ctx ends.
func (r *reporter) run(ctx context.Context) {
	for {
		wait := r.step(ctx)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-r.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// step writes if it is time to, and tells how long nothing need be done.
func (r *reporter) step(ctx context.Context) time.Duration {
	if len(r.fields.Missing()) > 0 {
		r.askFields(ctx)
	}
	r.mu.Lock()
	now := time.Now()
	if r.live == nil || r.wanted == nil || r.live.UID != r.uid || !now.Before(r.leased) {
		r.mu.Unlock()
		return mostPause
	}
	at, differs := r.pace.due(now, &r.live.Status, r.wanted)
	if !differs {
		r.mu.Unlock()
		return mostPause
	}
	if at = later(at, r.retry); at.After(now) {
		r.mu.Unlock()
		return at.Sub(now)
	}
	status, uid := withTimes(*r.wanted, &r.live.Status, now), r.uid
	r.pace.wrote(now)
	r.mu.Unlock()
	written, err := r.client.applyStatus(ctx, r.node, uid, &status, r.fields)
	if refusesField(err) && r.askFields(ctx) {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		written.SetManagedFields(nil)
		r.live, r.pause, r.retry = written, 0, time.Time{}
		r.said(nil)
		return 0
	}
	if ctx.Err() == nil {
		r.said(err)
	}
	r.pause = min(max(2*r.pause, leastPause), mostPause)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		r.live = nil // the watch will tell what there is now
	}
	r.retry = time.Now().Add(jitter(r.pause))
	return r.pause
}

// said logs transitions between success and failure.
func (r *reporter) said(err error) {
	switch {
	case err != nil && !r.failed:
		r.log.Info("Status not written, it is tried again", "error", err.Error())
	case err == nil && r.failed:
		r.log.Info("Status written again")
	}
	r.failed = err != nil
}
