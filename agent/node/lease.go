// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/go-logr/logr"

	"crem.dev/crem/api/v1alpha1"
)

// keepLease renews the node's Lease until ctx ends, and tells when it has. It is not given up then: an agent that is exchanged is back before anybody misses it.
func keepLease(ctx context.Context, c *client, namespace, node string, renewed func(time.Time), log logr.Logger) {
	failing := false
	for ctx.Err() == nil {
		now := time.Now()
		err := c.renewLease(ctx, namespace, node, now)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			log.Info("Lease not renewed, this node will be shown as not reporting", "namespace", namespace, "error", err.Error())
		case err == nil && failing:
			log.Info("Lease renewed again")
		}
		if failing = err != nil; !failing {
			renewed(now)
		}
		sleep(ctx, jitter(v1alpha1.LeaseRenewPeriod))
	}
}

// jitter is a time up to a tenth less than d, so that nodes that started together do not stay together.
func jitter(d time.Duration) time.Duration { return d - time.Duration(rand.Int64N(int64(d)/10+1)) }

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
