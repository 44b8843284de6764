// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"time"
)

// driftPeriod is how often the kernel is compared with what it was told. Somebody may take a program off an interface or an entry out of a map, by a tool
// or a mistake, and nothing tells.
const driftPeriod = 10 * time.Second

// keepKernel compares until the engine stops.
func (e *Engine) keepKernel() {
	tick := time.NewTicker(driftPeriod)
	defer tick.Stop()
	said := ""
	for {
		select {
		case <-e.stop:
			return
		case <-tick.C:
			said = e.repairKernel(said)
		}
	}
}

// repairKernel makes the kernel as it should be and tells what was not. said is the last failure; one that goes on is told once.
func (e *Engine) repairKernel(said string) string {
	e.mu.Lock()
	if e.snap.Load() == nil {
		e.mu.Unlock()
		return said
	}
	found, err := e.backend.Repair()
	inTunnels, tunnelErr := e.tunnels.repair()
	e.mu.Unlock()
	found, err = append(found, inTunnels...), errors.Join(err, tunnelErr)
	e.repaired.Add(uint64(len(found)))
	if len(found) > 0 && e.opts.Drift != nil {
		e.opts.Drift(found)
	}
	if err == nil {
		return ""
	}
	text := fmt.Sprintf("what the kernel has could not be made what it should be, it is tried again: %v", err)
	if text != said && e.opts.Notice != nil {
		e.opts.Notice(text)
	}
	return text
}
