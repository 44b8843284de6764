// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The old ethtool commands, one a feature; every kernel has them.
var offloads = []struct {
	name    string
	command uint32
}{
	{"receive checksum", 0x15},
	{"transmit checksum", 0x17},
	{"scatter and gather", 0x19},
	{"TCP segmentation", 0x1f},
	{"generic segmentation", 0x24},
	{"generic receive offload", 0x2c},
}

// offloadsOff makes an interface of the calling thread's namespace carry complete plain frames only.
func offloadsOff(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, o := range offloads {
		value := struct{ command, data uint32 }{command: o.command}
		var request struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}
		copy(request.name[:unix.IFNAMSIZ-1], name)
		request.data = unsafe.Pointer(&value)
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
		if e != 0 && !errors.Is(e, unix.EOPNOTSUPP) {
			return fmt.Errorf("turn %s off on %s: %w", o.name, name, e)
		}
	}
	return nil
}
