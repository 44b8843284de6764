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
