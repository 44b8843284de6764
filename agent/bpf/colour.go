// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/reporter"
)

// FlowCounts is what one end of a tunnel counted of a flow lately.
type FlowCounts struct {
	Tunnel Tunnel
	Flow   TunnelFlow
	reporter.Counts
}

var _ = [1]struct{}{}[reporter.Kept-len(wanFlowCounts{}.Periods)]

// countsAtOnce is how many flows are read by one call of the kernel.
const countsAtOnce = 256

// SetClock brings the programs' Unix time in line with the system's, which may have learnt of TAI meanwhile. It reports whether their time made a jump
// by that: the periods around it are not whole. It is called about once a second.
func (t *Tunnels) SetClock() (jumped bool, err error) {
	var now unix.Timex
	if _, err := unix.Adjtimex(&now); err != nil {
		return false, explain(err, "read the clock's distance from TAI")
	}
	return t.setTAI(time.Duration(now.Tai) * time.Second)
}

func (t *Tunnels) setTAI(distance time.Duration) (jumped bool, err error) {
	var before int64
	if err := t.kernel.TaiNs.Get(&before); err != nil {
		return false, explain(err, "read the programs' clock")
	}
	if before == int64(distance) {
		return false, nil
	}
	if err := t.kernel.TaiNs.Set(int64(distance)); err != nil {
		return false, explain(err, "set the programs' clock")
	}
	return true, nil
}

// Arrived calls yield for each flow that was counted as it came out of a tunnel of the plan.
func (t *Tunnels) Arrived(yield func(*FlowCounts)) error {
	return t.each(t.kernel.CremWanArrived, yield)
}

// Entered calls yield for each flow that was counted as it went into a tunnel of the plan.
func (t *Tunnels) Entered(yield func(*FlowCounts)) error {
	return t.each(t.kernel.CremWanEntered, yield)
}

// EnteredOf is what was counted of a flow as it went into a tunnel; false: nothing.
func (t *Tunnels) EnteredOf(w Tunnel, f TunnelFlow) (c reporter.Counts, ok bool, err error) {
	t.mu.Lock()
	index, ok := t.index[w]
	t.mu.Unlock()
	if !ok {
		return c, false, nil
	}
	key := wanCountedFlow{Flow: newFlowName(f), Tunnel: index}
	var v wanFlowCounts
	err = t.kernel.CremWanEntered.LookupWithFlags(&key, &v, ebpf.LookupLock)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return c, false, nil
	}
	if err != nil {
		return c, false, explain(err, "read the counts of a flow")
	}
	return v.counts(), true, nil
}

// ForgetCounts makes room: flows that had no packets since a period are not known any more.
func (t *Tunnels) ForgetCounts(since uint32) error {
	var errs []error
	for _, m := range []*ebpf.Map{t.kernel.CremWanEntered, t.kernel.CremWanArrived} {
		var old []wanCountedFlow
		err := eachCount(m, func(k *wanCountedFlow, v *wanFlowCounts) {
			if c := v.counts(); int32(c.Newest()-since) < 0 {
				old = append(old, *k)
			}
		})
		errs = append(errs, err)
		for i := range old {
			if err := m.Delete(&old[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				errs = append(errs, explain(err, "forget the counts of a flow"))
			}
		}
	}
	return errors.Join(errs...)
}

func (t *Tunnels) each(m *ebpf.Map, yield func(*FlowCounts)) error {
	t.mu.Lock()
	tunnels := make(map[uint32]Tunnel, len(t.index))
	for w, i := range t.index {
		tunnels[i] = w
	}
	t.mu.Unlock()
	addr := func(b [16]byte) netip.Addr { return netip.AddrFrom16(b).Unmap() }
	return eachCount(m, func(k *wanCountedFlow, v *wanFlowCounts) {
		if w, ok := tunnels[k.Tunnel]; ok {
			yield(&FlowCounts{Tunnel: w, Flow: TunnelFlow{Src: addr(k.Flow.Src), Dst: addr(k.Flow.Dst), QPN: k.Flow.Qpn}, Counts: v.counts()})
		}
	})
}

// eachCount calls yield for every entry of a map of counts. One that is made or deleted meanwhile may be left out or come twice.
func eachCount(m *ebpf.Map, yield func(*wanCountedFlow, *wanFlowCounts)) error {
	var cursor ebpf.MapBatchCursor
	keys, values := make([]wanCountedFlow, countsAtOnce), make([]wanFlowCounts, countsAtOnce)
	for {
		n, err := m.BatchLookup(&cursor, keys, values, &ebpf.BatchOptions{ElemFlags: uint64(ebpf.LookupLock)})
		for i := range n {
			yield(&keys[i], &values[i])
		}
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return nil
		case err != nil:
			return explain(err, "read the counts of flows")
		}
	}
}

func (v *wanFlowCounts) counts() reporter.Counts {
	c := reporter.Counts{Since: v.Since, Recoloured: v.Recoloured}
	for i, p := range v.Periods {
		c.Periods[i] = reporter.PeriodCounts{Number: p.Number, Packets: p.Packets, Sum: time.Duration(p.Sum)}
	}
	return c
}
