// SPDX-License-Identifier: Apache-2.0

package raw

import (
	"os/exec"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/realtime"
)

// hardware counts the loops that stand for hardware in this process.
var hardware struct {
	sync.Mutex
	loops int
}

// Hardware locks the calling goroutine to its thread and lets this process run before ordinary programs, with sleeps of this thread as short as the
// kernel can, until release is called: it stands for a network card or a line, which do not wait for a processor. Without the right to do so it runs as
// everyone does. The goroutine must sleep often.
func Hardware() (release func()) {
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	hardware.Lock()
	defer hardware.Unlock()
	hardware.loops++
	if hardware.loops == 1 {
		_ = realtime.Prefer()
	}
	return func() {
		hardware.Lock()
		defer hardware.Unlock()
		hardware.loops--
		if hardware.loops == 0 {
			_ = realtime.Release()
		}
		runtime.UnlockOSThread()
	}
}

// Software is the command for a program that is no hardware: started by a process that is, it would otherwise run in real time as well, and keep what stands
// for hardware from its processor.
func Software(name string, args ...string) *exec.Cmd {
	return exec.Command("chrt", append([]string{"--other", "0", name}, args...)...)
}
