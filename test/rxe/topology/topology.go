// SPDX-License-Identifier: Apache-2.0

// Package topology builds the two sites and the line between them: network namespaces, TAPs for the guests, veth pairs.
//
//	guest A --tap-- [crem-gwA] wan -- endA [crem-wan] endB -- wan [crem-gwB] --tap-- guest B
//	10.1.0.2     10.1.0.1  10.9.0.1       emulator        10.9.0.2  10.2.0.1      10.2.0.2
package topology

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The namespaces, as `ip netns exec NAME` takes them.
const (
	GatewayA = "crem-gwA"
	GatewayB = "crem-gwB"
	Line     = "crem-wan"
)

// Interface names: the gateways' uplink and guest side, and the two ends in the line's namespace.
const (
	Uplink = "wan"
	Access = "tap"
	EndA   = "endA"
	EndB   = "endB"
)

// Site is one side: its gateway and its guest.
type Site struct {
	Namespace        string
	Guest4, Guest6   netip.Prefix
	Router4, Router6 netip.Addr // the gateway as the guest sees it
	WAN4, WAN6       netip.Prefix
	TAP              *os.File // attached to Access in Namespace
}

// Topology is what Up has built.
type Topology struct{ A, B Site }

func site(namespace string, n int) Site {
	prefix := func(format string) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf(format, n)) }
	return Site{
		Namespace: namespace,
		Guest4:    prefix("10.%d.0.2/24"), Guest6: prefix("fd00:%d::2/64"),
		Router4: prefix("10.%d.0.1/24").Addr(), Router6: prefix("fd00:%d::1/64").Addr(),
		WAN4: prefix("10.9.0.%d/24"), WAN6: prefix("fd00:9::%d/64"),
	}
}

// Up builds everything; what an earlier run left behind is removed first. lanMTU is that of guests and TAPs, wanMTU that of the line.
func Up(lanMTU, wanMTU int) (*Topology, error) {
	Down()
	t := &Topology{A: site(GatewayA, 1), B: site(GatewayB, 2)}
	if err := t.build(lanMTU, wanMTU); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

func (t *Topology) build(lanMTU, wanMTU int) error {
	for _, ns := range []string{GatewayA, GatewayB, Line} {
		if err := run("ip", "netns", "add", ns); err != nil {
			return err
		}
	}
	for _, side := range []struct{ gateway, end string }{{GatewayA, EndA}, {GatewayB, EndB}} {
		if err := run("ip", "-n", side.gateway, "link", "add", Uplink, "type", "veth", "peer", "name", side.end, "netns", Line); err != nil {
			return err
		}
		if err := plain(Line, side.end, wanMTU); err != nil {
			return err
		}
	}
	return errors.Join(t.A.up(&t.B, lanMTU, wanMTU), t.B.up(&t.A, lanMTU, wanMTU))
}

func (s *Site) up(peer *Site, lanMTU, wanMTU int) (err error) {
	if s.TAP, err = openTAP(s.Namespace, Access); err != nil {
		return err
	}
	if err := plain(s.Namespace, Access, lanMTU); err != nil {
		return err
	}
	if err := plain(s.Namespace, Uplink, wanMTU); err != nil {
		return err
	}
	return batch(s.Namespace,
		"link set lo up",
		fmt.Sprintf("addr add %s/%d dev %s", s.Router4, s.Guest4.Bits(), Access),
		fmt.Sprintf("addr add %s/%d dev %s nodad", s.Router6, s.Guest6.Bits(), Access),
		fmt.Sprintf("addr add %s dev %s", s.WAN4, Uplink),
		fmt.Sprintf("addr add %s dev %s nodad", s.WAN6, Uplink),
		fmt.Sprintf("route add %s via %s", peer.Guest4.Masked(), peer.WAN4.Addr()),
		fmt.Sprintf("route add %s via %s", peer.Guest6.Masked(), peer.WAN6.Addr()))
}

// plain brings an interface up with frames as a wire carries them: no checksum left to hardware, no super-packet.
func plain(namespace, name string, mtu int) error {
	if err := batch(namespace, fmt.Sprintf("link set dev %s mtu %d up", name, mtu)); err != nil {
		return err
	}
	return run("ip", "netns", "exec", namespace, "ethtool", "-K", name, "tx", "off", "tso", "off", "gso", "off", "gro", "off")
}

// batch runs ip commands in a namespace that forwards packets.
func batch(namespace string, commands ...string) error {
	cmd := exec.Command("ip", "-n", namespace, "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip in %s: %w: %s", namespace, err, out)
	}
	return In(namespace, func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
	})
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// Close removes the topology. The guests on its TAPs lose their network.
func (t *Topology) Close() {
	for _, f := range []*os.File{t.A.TAP, t.B.TAP} {
		if f != nil {
			_ = f.Close()
		}
	}
	Down()
}

// Down removes the namespaces, if there are any.
func Down() {
	for _, ns := range []string{GatewayA, GatewayB, Line} {
		if _, err := os.Stat("/run/netns/" + ns); err == nil {
			_ = run("ip", "netns", "del", ns)
		}
	}
}

// In calls f on a thread of its own in the named network namespace. The thread ends with f: what f opens stays in the namespace.
func In(namespace string, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- func() error {
			ns, err := os.Open("/run/netns/" + namespace)
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter %s: %w", namespace, err)
			}
			return f()
		}()
	}()
	return <-done
}

func openTAP(namespace, name string) (f *os.File, err error) {
	err = In(namespace, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("/dev/net/tun: %w", err)
		}
		req, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(req))); e != 0 {
			_ = unix.Close(fd)
			return fmt.Errorf("TAP %s: %w", name, e)
		}
		f = os.NewFile(uintptr(fd), name)
		return nil
	})
	return f, err
}
