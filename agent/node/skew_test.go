// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	"github.com/go-logr/logr"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/test/oldercrds"
)

// TestG11_OlderCRDs (G11): an agent reports to an API server whose definitions are those of an older release, without what they lack, and writes nothing at
// rest. When the definitions of its own release come it reports all.
func TestG11_OlderCRDs(t *testing.T) {
	cfg := apiServer(t)
	k := kubernetes{t, admin(t, cfg)}
	_, restore := oldercrds.Serve(t, cfg, "CREMNode status.capabilities", "CREMNode status.domains.sites", "CREMDomain spec.wan")
	k.create(nodeOf("gw-old"))
	r := startCluster(t, cfg, "gw-old", t.TempDir(), &dataPath{})
	soon(t, "the agent reports", k.ready("gw-old", 1))
	soon(t, "nothing is left to write", func() bool {
		rep := r.agent.reporter
		rep.mu.Lock()
		defer rep.mu.Unlock()
		_, differs := new(pacer).due(time.Now(), &rep.live.Status, rep.wanted)
		return !differs && rep.whole.Capabilities != nil
	})
	if n := len(r.requests.matching("/openapi/")); n != 1 {
		t.Errorf("asked %d times which fields the API server knows", n)
	}
	if r.log.count("CREMNode status.domains.sites, CREMNode status.capabilities") != 1 {
		t.Error("the log does not name the fields")
	}
	r.stop()

	c, err := newClient(cfg, "test")
	if err != nil {
		t.Fatal(err)
	}
	rep := newReporter(c, "gw-old", logr.Discard())
	rep.want("uid", v1alpha1.CREMNodeStatus{BootID: "boot", Capabilities: &v1alpha1.NodeCapabilities{Kernel: "6.18"}})
	reports := func() string {
		text := rep.wanted.BootID
		if rep.wanted.Capabilities != nil {
			text += " " + rep.wanted.Capabilities.Kernel
		}
		return text
	}
	if !rep.askFields(t.Context()) || reports() != "boot" {
		t.Errorf("reports %q where the API server knows no capabilities", reports())
	}
	restore()
	if rep.askFields(t.Context()) {
		t.Error("asks again at once")
	}
	rep.asked = time.Now().Add(-fieldsPeriod)
	if !rep.askFields(t.Context()) || reports() != "boot 6.18" {
		t.Errorf("reports %q where the API server knows all", reports())
	}
}
