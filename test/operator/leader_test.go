// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	corev1 "k8s.io/api/core/v1"
)

// TestLeaderChange: of two operators one works; when it stops it gives the lease back and the other goes on within seconds, writing only what is new.
func TestLeaderChange(t *testing.T) {
	clean(t)
	elected := func(o *ctrl.Options) {
		warm := true
		o.LeaderElection, o.LeaderElectionID, o.LeaderElectionNamespace, o.LeaderElectionReleaseOnCancel = true, "crem-operator", namespace, true
		o.Controller.EnableWarmup = &warm
	}
	first := start(t, quick(), elected)
	create(t, domain("d", 52000, "wan0", labelled("gw", "1")), node("n1", "gw=1"))
	within(t, patience, wantDomains(t, "n1", "d"))
	second := start(t, quick(), elected)
	first.settle(t)
	if n := len(second.written()); n > 0 {
		t.Errorf("the one that waits wrote: %v", second.written())
	}
	first.stop()
	change(t, node("n1"), func(n *corev1.Node) { n.Labels["gw"] = "2" })
	create(t, node("n2", "gw=1"))
	within(t, 10*time.Second, wantDomains(t, "n2", "d"))
	within(t, 10*time.Second, wantDomains(t, "n1", ""))
	second.settle(t)
	if n := len(second.written()); n > 5 {
		t.Errorf("the new leader wrote %d times: %v", n, second.written())
	}
}
