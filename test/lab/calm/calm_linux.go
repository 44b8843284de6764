// SPDX-License-Identifier: Apache-2.0

// Package calm tells whether a machine let its programs run: what they show against the clock says nothing about them while somebody else, such as the host
// of a virtual machine, has their processors.
package calm

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Limit is how long a processor may be away before what was measured meanwhile counts as disturbed.
	Limit = 5 * time.Millisecond
	// nap is how long the watching threads sleep: a processor that is away for longer than that is noticed.
	nap = 500 * time.Microsecond
	// first is the highest real-time priority: the threads wait for none of this machine's programs, so that a program which keeps others waiting excuses
	// nothing.
	first = 99
)

// Watch notes for how long each processor was away.
type Watch struct {
	stop  chan struct{}
	ended sync.WaitGroup
	worst atomic.Int64     // nanoseconds
	turns []*atomic.Uint64 // of each thread
}

// Start begins to watch. It fails without the right to real-time priorities.
func Start() (*Watch, error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, fmt.Errorf("processors of this process: %w", err)
	}
	w := &Watch{stop: make(chan struct{})}
	began := make(chan error)
	for cpu := 0; len(w.turns) < all.Count(); cpu++ {
		if !all.IsSet(cpu) {
			continue
		}
		turns := new(atomic.Uint64)
		w.turns = append(w.turns, turns)
		w.ended.Add(1)
		go w.watch(cpu, turns, began)
	}
	var failed error
	for range w.turns {
		if err := <-began; err != nil {
			failed = err
		}
	}
	if failed != nil {
		w.Stop()
		return nil, failed
	}
	return w, nil
}

// Worst returns the longest time that a processor was away since the last call, or since the start. It waits for those that are away.
func (w *Watch) Worst() time.Duration {
	for _, turns := range w.turns {
		for next := turns.Load() + 2; turns.Load() < next; {
			time.Sleep(nap)
		}
	}
	return time.Duration(w.worst.Swap(0))
}

// Stop ends the watch.
func (w *Watch) Stop() {
	close(w.stop)
	w.ended.Wait()
}

// watch is the thread on one processor. It ends with its goroutine, as nobody else shall have what it was given.
func (w *Watch) watch(cpu int, turns *atomic.Uint64, began chan<- error) {
	defer w.ended.Done()
	runtime.LockOSThread()
	err := settle(cpu)
	began <- err
	if err != nil {
		return
	}
	pause := unix.NsecToTimespec(int64(nap))
	for {
		select {
		case <-w.stop:
			return
		default:
		}
		from := time.Now()
		_ = unix.Nanosleep(&pause, nil)
		w.note(time.Since(from) - nap)
		turns.Add(1)
	}
}

func (w *Watch) note(away time.Duration) {
	for {
		worst := w.worst.Load()
		if int64(away) <= worst || w.worst.CompareAndSwap(worst, int64(away)) {
			return
		}
	}
}

// settle binds the calling thread to a processor, before all others there.
func settle(cpu int) error {
	var one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("thread on processor %d: %w", cpu, err)
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: first}, 0); err != nil {
		return fmt.Errorf("real-time priority: %w", err)
	}
	return nil
}
