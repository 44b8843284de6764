// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"crem.dev/crem/test/lab/topology"
)

// cores are the two processors of the measurement.
type cores struct {
	other   int // the generator, the far end and this program
	gateway int // the gateway: its kernel path and its agent
}

// takeCores chooses two processors and moves every thread of this process to the first one, before ordinary programs. Threads and processes made later follow.
func takeCores() (c cores, err error) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return c, err
	}
	var found []int
	for i := range 1024 {
		if allowed.IsSet(i) {
			found = append(found, i)
		}
	}
	if len(found) < 2 {
		return c, errors.New("needs two processors: one for the gateway, one for the rest")
	}
	c = cores{other: found[0], gateway: found[1]}
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		return c, err
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(filepath.Base(t))
		if err != nil {
			return c, err
		}
		if err := claim(tid, c.other); err != nil && !errors.Is(err, unix.ESRCH) {
			return c, err
		}
	}
	return c, nil
}

// preferSession lets the session that this program runs in go before others until the function returned is called. Linux shares a busy processor
// among sessions first, and a thread's niceness counts only inside its own.
func preferSession() (restore func()) {
	const name = "/proc/self/autogroup"
	text, err := os.ReadFile(name)
	if err != nil {
		return func() {} // sessions share nothing here
	}
	before := string(text[strings.LastIndexByte(string(text), ' ')+1:])
	_ = os.WriteFile(name, []byte("-19"), 0) // without it the measurement is only more disturbed
	return func() { _ = os.WriteFile(name, []byte(strings.TrimSpace(before)), 0) }
}

// pin binds a thread to a processor; 0 is the calling one.
func pin(tid, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(tid, &set)
}

// claim binds a thread to a processor and lets it run before ordinary programs: whatever else the machine does must not stand between.
func claim(tid, cpu int) error {
	return errors.Join(pin(tid, cpu), unix.Setpriority(unix.PRIO_PROCESS, tid, -19))
}

// ownThread gives the input side of an interface a kernel thread of its own on a processor: everything that the kernel does with a frame that
// arrives there, forwarding and sending included, is done by that thread. Otherwise a virtual interface works in the sender's time.
func ownThread(ns *topology.Namespace, device string, cpu int) (threads []int, err error) {
	return threads, ns.Do(func() error {
		before, err := kernelThreads("napi/" + device + "-")
		if err != nil {
			return err
		}
		if err := receiveOffload(device); err != nil {
			return fmt.Errorf("receive offload of %s: %w", device, err)
		}
		if err := os.WriteFile("/sys/class/net/"+device+"/threaded", []byte("1"), 0); err != nil {
			return fmt.Errorf("threaded input of %s: %w", device, err)
		}
		after, err := kernelThreads("napi/" + device + "-")
		if err != nil {
			return err
		}
		maps.DeleteFunc(after, func(tid int, _ bool) bool { return before[tid] })
		if len(after) == 0 {
			return fmt.Errorf("%s has no input thread: the kernel is too old", device)
		}
		for tid := range after {
			if err := claim(tid, cpu); err != nil {
				return err
			}
			threads = append(threads, tid)
		}
		return nil
	})
}

// kernelThreads are the threads whose name begins so. Those that serve an interface are named for it, whatever namespace it is in.
func kernelThreads(prefix string) (map[int]bool, error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	found := map[int]bool{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		if strings.HasPrefix(string(text), prefix) {
			tid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			if err != nil {
				return nil, err
			}
			found[tid] = true
		}
	}
	return found, nil
}

// receiveOffload turns generic receive offload on: a veth interface without it has no input queue of its own. It joins no RoCEv2 packets.
func receiveOffload(device string) error {
	const set = 0x2c // ETHTOOL_SGRO
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{set, 1}
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	request.data = unsafe.Pointer(&value)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); e != 0 {
		return e
	}
	return nil
}

func deviceIndex(name string) (int, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	return i.Index, nil
}

// cpuTime is the processor time that a process has used so far, all its threads together.
func cpuTime(pid int) (total time.Duration, err error) {
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return 0, err
		}
		used, err := schedTime(string(text))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		total += used
	}
	if total == 0 {
		return 0, fmt.Errorf("process %d has used no time, or the kernel does not say", pid)
	}
	return total, nil
}

// schedTime reads the first number of a schedstat file: nanoseconds on a processor.
func schedTime(text string) (time.Duration, error) {
	first, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	n, err := strconv.ParseInt(first, 10, 64)
	return time.Duration(n), err
}
