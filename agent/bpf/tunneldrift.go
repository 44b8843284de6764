// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
)

// Repair compares what the kernel has of tunnels with the plan and with where the programs were attached: the pairs of gateways, the prefixes, what stays of
// each tunnel, the programs on interfaces, their pins. Whatever somebody else changed is made as it was, and there is a sentence for each. A tunnel whose
// own entry was another one is closed until its next lease. An error says what could not be compared or repaired; the rest is.
func (t *Tunnels) Repair() (found []string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	inPlan, err := t.repairPlan()
	onHooks, hooksErr := t.repairHooks()
	return append(inPlan, onHooks...), errors.Join(err, hooksErr)
}

func (t *Tunnels) repairPlan() (found []string, err error) {
	if t.plan == nil {
		return nil, nil
	}
	for w, i := range t.index {
		if e := &t.entries[i]; !e.is(w) {
			found = append(found, fmt.Sprintf("the tunnel from %v to %v was another one", w.Local, w.Remote))
			e.fill(w)
		}
	}
	c, err := t.compare(*t.plan)
	if err != nil {
		return found, err
	}
	if err := inTurn(c.places.remove, c.ends.remove, c.carryOut); err != nil {
		return found, err
	}
	if put, forget := len(c.ends.put), len(c.ends.forget); put+forget > 0 {
		found = append(found, fmt.Sprintf("of the pairs of gateways with a tunnel %d were missing or wrong, %d not ours", put, forget))
	}
	if put, forget := len(c.places.put), len(c.places.forget); put+forget > 0 {
		found = append(found, fmt.Sprintf("of the prefixes that tunnels lead to %d were missing or wrong, %d not ours", put, forget))
	}
	return found, nil
}
