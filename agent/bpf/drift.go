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

// wanted is what the kernel was told last and took, to be compared with what it has.
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

// repairFlows looks at entries without the lock under which workers register flows: only what seems wrong is looked at again with it.
func (o *Objects) repairFlows() (found []string, err error) {
	n := 0
	for index := range o.config.MaxFlows {
		o.mu.Lock()
		key, live := o.keys[index]
		o.mu.Unlock()
		if !live {
			continue
		}
		right, err := o.rightEntry(key, index)
		if err == nil && !right {
			right, err = o.repairFlow(key)
		}
		if err != nil {
			return nil, err
		}
		if !right {
			n++
		}
	}
	if n == 0 {
		return nil, nil
	}
	return []string{fmt.Sprintf("of the flows that are restored %d had no entry, or a wrong one", n)}, nil
}

// rightEntry reports whether the kernel finds a flow under its key.
func (o *Objects) rightEntry(key packet.FlowKey, index int) (bool, error) {
	k := newKey(key)
	var have uint32
	err := o.kernel.CremFlowIndex.Lookup(&k, &have)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return err == nil && have == uint32(index), explain(err, "look at a flow")
}

// repairFlow makes the entry of a flow right, unless it is by now, or the flow has ended. Packets passed without a copy before, so the program learns anew
// where the flow is.
func (o *Objects) repairFlow(key packet.FlowKey) (right bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	index, live := o.live[key]
	if !live {
		return true, nil
	}
	if right, err := o.rightEntry(key, index); err != nil || right {
		return right, err
	}
	o.relearn(index)
	k, want := newKey(key), uint32(index)
	return false, explain(o.kernel.CremFlowIndex.Put(&k, &want), "register flow")
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
