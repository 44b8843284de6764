// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"net"
	"os"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// newTAP makes a TAP in the calling thread's namespace. The file is the cable's other end: whole frames, no virtio header. The TAP goes when the last copy
// of the file is closed.
func newTAP(name string, mac net.HardwareAddr, mtu int) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := attachTAP(fd, name, mac, mtu); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("TAP %s: %w", name, err)
	}
	return f, nil
}

func attachTAP(fd int, name string, mac net.HardwareAddr, mtu int) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(request))); e != 0 {
		return e
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
		return err
	}
	return netlink.LinkSetMTU(link, mtu)
}
