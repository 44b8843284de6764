// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"

	"github.com/cilium/ebpf"

	"crem.dev/crem/agent/packet"
)

// wanted is what the kernel was told, to be compared with what it has.
type wanted struct {
	boundary   *boundary // nil: nothing yet
	transports cremTransports
	bare       map[int]bool // the interfaces with our programs, and whether their packets have no Ethernet header
}

// Repair compares what the kernel has with what it was told: entries of maps, the entries of flows, programs on interfaces, their pins. Whatever somebody
// else changed is made as it was, and there is a sentence for each. An error says what could not be compared or repaired; the rest is. Like Attach and
// SetDomains it is for one goroutine at a time; workers register flows meanwhile.
func (o *Objects) Repair() (found []string, err error) {
	var errs []error
	for _, part := range []func() ([]string, error){o.repairBoundary, o.repairTransports, o.repairFlows, o.repairHooks} {
		sentences, err := part()
		found, errs = append(found, sentences...), append(errs, err)
	}
	return found, errors.Join(errs...)
}

func (o *Objects) repairBoundary() ([]string, error) {
	if o.wanted.boundary == nil {
		return nil, nil
	}
	c, err := o.compare(o.wanted.boundary)
	if err != nil {
		return nil, err
	}
	found := c.found()
	if len(found) == 0 {
		return nil, nil
	}
	return found, c.carryOut()
}

func (o *Objects) repairTransports() ([]string, error) {
	var have cremTransports
	if err := o.kernel.CremTransports.Lookup(uint32(0), &have); err != nil {
		return nil, explain(err, "read the transports")
	}
	if have == o.wanted.transports {
		return nil, nil
	}
	return []string{"the transports that are recognised beside RoCEv2 were others"}, explain(o.kernel.CremTransports.Put(uint32(0), &o.wanted.transports), "set the transports")
}

// repairFlows looks at one flow at a time, so that no worker waits for long.
func (o *Objects) repairFlows() (found []string, err error) {
	o.mu.Lock()
	keys := slices.Collect(maps.Keys(o.live))
	o.mu.Unlock()
	n := 0
	for _, key := range keys {
		was, err := o.repairFlow(key)
		if err != nil {
			return found, err
		}
		if was {
			n++
		}
	}
	if n > 0 {
		found = append(found, fmt.Sprintf("of the flows that are restored %d had no entry, or a wrong one", n))
	}
	return found, nil
}

// repairFlow reports whether the entry of a flow was missing or another's. Packets passed without a copy then, so the program learns anew where the flow is.
func (o *Objects) repairFlow(key packet.FlowKey) (was bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	index, live := o.live[key]
	if !live {
		return false, nil // it ended meanwhile
	}
	k, want := newKey(key), uint32(index)
	var have uint32
	switch err := o.kernel.CremFlowIndex.Lookup(&k, &have); {
	case err == nil && have == want:
		return false, nil
	case err != nil && !errors.Is(err, ebpf.ErrKeyNotExist):
		return false, explain(err, "look at a flow")
	}
	o.relearn(index)
	return true, explain(o.kernel.CremFlowIndex.Put(&k, &want), "register flow")
}

func (o *Objects) repairHooks() (found []string, err error) {
	var errs []error
	for _, ifindex := range slices.Sorted(maps.Keys(o.wanted.bare)) {
		i, err := net.InterfaceByIndex(ifindex)
		if err != nil {
			continue // it is gone, which is told by others
		}
		amiss := append(o.amiss(hook{ifindex, Egress}, i.Name), o.amiss(hook{ifindex, Ingress}, i.Name)...)
		if len(amiss) == 0 {
			continue
		}
		found = append(found, amiss...)
		_, err = o.Attach(ifindex, o.wanted.bare[ifindex])
		errs = append(errs, err)
	}
	return found, errors.Join(errs...)
}

// amiss says what is wrong with our program on a hook.
func (o *hooks) amiss(h hook, name string) []string {
	l, ok := o.links[h]
	if !ok || l.ifindex() != h.ifindex {
		return []string{fmt.Sprintf("the program on the %s of %s had been taken off", h.direction, name)}
	}
	if o.pins == nil {
		return nil
	}
	if _, err := os.Stat(o.pins.linkPath(h)); errors.Is(err, os.ErrNotExist) {
		return []string{fmt.Sprintf("the pin of the program on the %s of %s had been removed", h.direction, name)}
	}
	return nil
}
