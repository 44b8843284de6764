// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/go-logr/logr"

	"crem.dev/crem/internal/agentapi"
)

// transitions logs what became of uplinks and domains: one line when it changes, none otherwise. It belongs to one goroutine.
type transitions struct {
	log   logr.Logger
	items map[string]string // as they were logged last, with their problems

	suspended map[siteOf]bool // with flows that are left to RDMA
}

// say compares the status with what was logged last.
func (t *transitions) say(status *agentapi.Status) {
	now := map[string]string{}
	for _, d := range status.Domains {
		now["domain "+d.Name] = d.Problem
		t.item("Domain in force", "Domain not in force", "domain", d.Name, d.Problem)
	}
	for _, u := range status.Uplinks {
		now["uplink "+u.Name] = u.Problem
		t.item("Uplink attached", "Uplink not attached", "uplink", u.Name, u.Problem)
	}
	for _, x := range status.Tunnels {
		if !x.Gateway {
			continue
		}
		name := x.Domain + "/" + x.Site
		now["tunnel "+name] = x.Problem
		t.item("Tunnel up", "Tunnel not up, flows leave outside of it", "tunnel", name, x.Problem)
	}
	for item := range t.items {
		if _, there := now[item]; !there {
			t.log.Info("No longer in force", "item", item)
		}
	}
	t.items = now
}

// suspensions tells which sites' flows are left to RDMA. It is asked with the status that has counters.
func (t *transitions) suspensions(sites []agentapi.Site) {
	now := map[siteOf]bool{}
	for _, s := range sites {
		key := siteOf{s.Domain, s.Name}
		switch was := t.suspended[key]; {
		case s.Suspended > 0 && !was:
			t.log.Info("Repairs suspended, flows are left to RDMA: over 10 % of their packets are lost or over 50 % marked", "domain", s.Domain, "site", s.Name, "flows", s.Suspended)
		case s.Suspended == 0 && was:
			t.log.Info("Repairs resumed", "domain", s.Domain, "site", s.Name)
		}
		if s.Suspended > 0 {
			now[key] = true
		}
	}
	t.suspended = now
}

func (t *transitions) item(good, bad, kind, name, problem string) {
	if was, known := t.items[kind+" "+name]; known && was == problem {
		return
	}
	if problem == "" {
		t.log.Info(good, kind, name)
	} else {
		t.log.Info(bad, kind, name, "problem", problem)
	}
}
