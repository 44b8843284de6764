// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"cmp"
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
	boundary   *boundary // nil: nothing yet, or the kernel refused a part of it
	transports cremTransports
}

// Repair compares what the kernel has with what it was told: entries of maps, the entries of flows, programs on interfaces, their pins. Whatever somebody
// else changed is made as it was, and there is a sentence for each. An error says what could not be compared or repaired; the rest is, and only that has sentences. Like Attach and
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
	// What is not ours goes first: somebody may have filled a map.
	if err := inTurn(c.ports.remove, c.served.remove, c.locals.remove, c.members.remove, c.carryOut); err != nil {
		return nil, err
	}
	return found, nil
}

func (o *Objects) repairTransports() ([]string, error) {
	var have cremTransports
	if err := o.kernel.CremTransports.Lookup(uint32(0), &have); err != nil {
		return nil, explain(err, "read the transports")
	}
	if have == o.wanted.transports {
		return nil, nil
	}
	if err := o.kernel.CremTransports.Put(uint32(0), &o.wanted.transports); err != nil {
		return nil, explain(err, "set the transports")
	}
	return []string{"the transports that are recognised beside RoCEv2 were others"}, nil
}

// repairFlows takes away the entries that are no flow's, which may fill the map, then makes those of the flows right.
func (o *Objects) repairFlows() (found []string, err error) {
	foreign, err := o.removeForeign()
	if foreign > 0 {
		found = append(found, fmt.Sprintf("%d entries of flows were not ours", foreign))
	}
	wrong, failed := o.repairEntries()
	if wrong > 0 {
		found = append(found, fmt.Sprintf("of the flows that are restored %d had no entry, or a wrong one", wrong))
	}
	return found, cmp.Or(err, failed)
}

// removeForeign removes entries of flows that no worker registered, and says how many. It looks without the lock under which workers register flows: only what
// seems wrong is looked at again with it.
func (o *Objects) removeForeign() (n int, failed error) {
	var suspects []cremFlowKey
	var key cremFlowKey
	var index uint32
	it := o.kernel.CremFlowIndex.Iterate()
	for it.Next(&key, &index) {
		if !o.isLive(&key) {
			suspects = append(suspects, key)
		}
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) { // so many come and go; the rest is looked at next time
		failed = explain(err, "read the entries of flows")
	}
	for i := range suspects {
		removed, err := o.removeUnlessLive(&suspects[i])
		if failed = cmp.Or(failed, err); removed {
			n++
		}
	}
	return n, failed
}

func (o *Objects) isLive(key *cremFlowKey) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, live := o.live[key.flow()]
	return live
}

// removeUnlessLive removes the entry of a flow, unless a worker has registered it by now.
func (o *Objects) removeUnlessLive(key *cremFlowKey) (removed bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, live := o.live[key.flow()]; live {
		return false, nil
	}
	err = o.kernel.CremFlowIndex.Delete(key)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil // it was that of a flow that has ended
	}
	return err == nil, explain(err, "remove an entry of a flow that is not ours")
}

// repairEntries makes the entries of all flows right, and says how many were not. It looks as removeForeign does.
func (o *Objects) repairEntries() (n int, failed error) {
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
		if failed = cmp.Or(failed, err); err == nil && !right {
			n++
		}
	}
	return n, failed
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

// repairHooks attaches again what is not as it was attached: on egress first, as Attach does.
func (o *hooks) repairHooks() (found []string, err error) {
	var errs []error
	for _, h := range slices.SortedFunc(maps.Keys(o.seats), hook.compare) {
		i, err := net.InterfaceByIndex(h.ifindex)
		if err != nil {
			continue // it is gone, which is told by others
		}
		why, err := o.amiss(h)
		if err == nil && why != "" {
			if _, err = o.attach(h, o.seats[h], new(bool)); err == nil {
				found = append(found, fmt.Sprintf("%s on the %s of %s had been %s", o.seats[h].name, h.direction, i.Name, why))
			}
		}
		errs = append(errs, err)
	}
	return found, errors.Join(errs...)
}

// compare orders hooks by interface, egress first.
func (h hook) compare(other hook) int {
	return cmp.Or(cmp.Compare(h.ifindex, other.ifindex), cmp.Compare(h.direction, other.direction))
}

// amiss says what was done to our program on a hook; empty: nothing.
func (o *hooks) amiss(h hook) (string, error) {
	l, ok := o.links[h]
	if !ok || l.ifindex() != h.ifindex {
		return "taken off", nil
	}
	have, err := l.Info()
	if err != nil {
		return "", explain(err, "look at the link on %s", h)
	}
	want, err := o.seats[h].program.Info()
	if err != nil {
		return "", explain(err, "look at the program for %s", h)
	}
	if id, _ := want.ID(); id != have.Program {
		return "exchanged for another program", nil
	}
	if o.pins != nil {
		if _, err := os.Stat(o.pins.linkPath(h)); errors.Is(err, os.ErrNotExist) {
			return "left without its pin", nil
		}
	}
	return "", nil
}
