// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const niceness = -19

// Namespace is a network namespace with a mount namespace of its own, in which /sys shows its interfaces and /sys/fs/bpf is empty.
type Namespace struct {
	Name  string
	tid   int
	calls chan func()
	ended chan struct{}
}

// newNamespace makes a namespace and the thread that it lives with.
func newNamespace(name string) (*Namespace, error) {
	n := &Namespace{Name: name, calls: make(chan func()), ended: make(chan struct{})}
	ready := make(chan error)
	go onOwnThread(func() { n.live(ready) })
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("namespace %s: %w", name, err)
	}
	return n, nil
}

// onOwnThread runs f in a thread that ends with it. The process's first thread can't be one: the runtime never ends it.
func onOwnThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return // still locked: the runtime ends the thread with the goroutine, and the kernel the namespaces with the thread
	}
	locked := make(chan struct{})
	go func() { // in another thread, since this one is taken
		runtime.LockOSThread()
		close(locked)
		f()
	}()
	<-locked
	runtime.UnlockOSThread()
}

// live runs in the namespace's thread.
func (n *Namespace) live(ready chan<- error) {
	defer close(n.ended)
	n.tid = unix.Gettid()
	err := enter()
	ready <- err
	if err != nil {
		return
	}
	for f := <-n.calls; f != nil; f = <-n.calls {
		f()
	}
}

// enter takes the calling thread to new namespaces.
func enter() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare (needs root): %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("crem-lab", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if err := unix.Mount("crem-lab", "/sys/fs/bpf", "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount /sys/fs/bpf: %w", err)
	}
	// What runs here stands for network cards, lines and routers; it must not wait for whatever else the machine does. Programs inherit it.
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, niceness); err != nil {
		return fmt.Errorf("raise priority: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return netlink.LinkSetUp(lo)
}

// Do runs f in the namespace's thread. Sockets, links and processes that it makes stay there; goroutines that it starts are elsewhere.
func (n *Namespace) Do(f func() error) error {
	result := make(chan error, 1)
	select {
	case n.calls <- func() { result <- f() }:
		return <-result
	case <-n.ended:
		return fmt.Errorf("namespace %s has ended", n.Name)
	}
}

// Path names the namespace for other programs, as in nsenter --net=PATH, while it lives.
func (n *Namespace) Path() string { return fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), n.tid) }

// close ends the thread. It may be called again.
func (n *Namespace) close() {
	select {
	case n.calls <- nil:
	case <-n.ended:
	}
	<-n.ended
}

// sysctl sets a value; key is a path below /proc/sys. It must run in the namespace's thread.
func sysctl(key, value string) error { return os.WriteFile("/proc/sys/"+key, []byte(value), 0) }
