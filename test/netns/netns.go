// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package netns makes network namespaces for tests. A namespace has no name in the file system and ends with the test
// process, however that ends; Path lets other programs enter it meanwhile.
package netns

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// NS is a network namespace. Its loopback interface is up.
type NS struct {
	t      testing.TB
	handle netns.NsHandle
}

// NeedRoot skips the test without root: making a namespace needs it.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
}

// New makes a namespace that lives until the test ends. Without root the test is skipped.
func New(t testing.TB) *NS {
	t.Helper()
	NeedRoot(t)
	n := &NS{t: t, handle: netns.None()}
	// A thread that goes on in another namespace than it should is worse than none: the runtime ends it with the goroutine.
	made := make(chan error)
	go func() {
		runtime.LockOSThread()
		var err error
		n.handle, err = netns.New()
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatalf("make network namespace: %v", err)
	}
	t.Cleanup(func() { n.handle.Close() })
	n.Do(func() { n.up("lo") })
	return n
}

// Do runs fn on a thread inside the namespace, in the calling goroutine, so that fn may end the test. Goroutines that fn
// starts are outside; sockets, links and processes that it makes stay inside.
func (n *NS) Do(fn func()) {
	n.t.Helper()
	runtime.LockOSThread()
	outside, err := netns.Get()
	if err != nil {
		n.t.Fatalf("remember network namespace: %v", err)
	}
	defer outside.Close()
	if err := netns.Set(n.handle); err != nil {
		n.t.Fatalf("enter network namespace: %v", err)
	}
	defer func() {
		if err := netns.Set(outside); err != nil {
			n.t.Errorf("leave network namespace: %v", err)
			return // the thread stays locked and ends with the goroutine
		}
		runtime.UnlockOSThread()
	}()
	fn()
}

// Inside runs the calling test once more, alone in a process of its own all of whose threads are in a new namespace, and reports whether this is that
// process. It is for what starts goroutines, which Do cannot take along. The outer test gets the result and has nothing else to do.
func Inside(t *testing.T) bool {
	t.Helper()
	const env = "CREM_TEST_INSIDE"
	if os.Getenv(env) == t.Name() {
		return true
	}
	n := New(t)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1", "-test.timeout=3m")
	cmd.Env = append(os.Environ(), env+"="+t.Name())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := n.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	t.Logf("in a namespace:\n%s", &out)
	if err != nil {
		t.Fatal(err)
	}
	return false
}

// Path is a path to the namespace for other processes, as in nsenter --net=PATH.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(n.handle)) }

// Start starts a process inside the namespace.
func (n *NS) Start(cmd *exec.Cmd) error {
	var err error
	n.Do(func() { err = cmd.Start() })
	return err
}

// End is one end of a veth pair.
type End struct {
	NS    *NS
	Name  string
	MAC   string   // empty: any
	Addrs []string // with prefix length
}

// Link connects two namespaces by a veth pair that is up, and returns the interface indices of both ends. mtu is the
// largest IP packet.
func Link(t testing.TB, mtu int, a, b End) (int, int) {
	t.Helper()
	pair := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: a.Name, MTU: mtu, HardwareAddr: parseMAC(t, a.MAC)},
		PeerName:      b.Name,
		PeerMTU:       uint32(mtu),
		PeerNamespace: netlink.NsFd(int(b.NS.handle)),
	}
	if b.MAC != "" {
		pair.PeerHardwareAddr = parseMAC(t, b.MAC)
	}
	a.NS.Do(func() {
		if err := netlink.LinkAdd(pair); err != nil {
			t.Fatalf("make veth pair %s, %s: %v", a.Name, b.Name, err)
		}
	})
	return a.setUp(t), b.setUp(t)
}

// TUN makes an interface without Ethernet headers that is up, and returns its interface index. What is written to the file arrives at
// the interface, and what leaves by it can be read, whole IP packets both.
func TUN(t testing.TB, mtu int, e End) (*os.File, int) {
	t.Helper()
	var f *os.File
	e.NS.Do(func() {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Skipf("needs /dev/net/tun: %v", err)
		}
		request, err := unix.NewIfreq(e.Name)
		if err != nil {
			t.Fatal(err)
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			t.Fatalf("make TUN %s: %v", e.Name, err)
		}
		f = os.NewFile(uintptr(fd), e.Name) // now: a descriptor that is no interface yet cannot be waited on
		t.Cleanup(func() { f.Close() })
		link, err := netlink.LinkByName(e.Name)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			t.Fatal(err)
		}
	})
	return f, e.setUp(t)
}

func parseMAC(t testing.TB, mac string) net.HardwareAddr {
	if mac == "" {
		return nil
	}
	parsed, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func (e End) setUp(t testing.TB) (index int) {
	t.Helper()
	e.NS.Do(func() {
		// Router solicitations would disturb counts.
		for _, name := range []string{"accept_dad", "accept_ra", "router_solicitations"} {
			e.NS.Sysctl("net/ipv6/conf/"+e.Name+"/"+name, "0")
		}
		link := e.NS.up(e.Name)
		index = link.Attrs().Index
		for _, a := range e.Addrs {
			addr, err := netlink.ParseAddr(a)
			if err != nil {
				t.Fatal(err)
			}
			addr.Flags = unix.IFA_F_NODAD // at once usable, without looking for duplicates
			if err := netlink.AddrAdd(link, addr); err != nil {
				t.Fatalf("give %s the address %s: %v", e.Name, a, err)
			}
		}
	})
	return index
}

func (n *NS) up(name string) netlink.Link {
	n.t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		n.t.Fatalf("interface %s: %v", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		n.t.Fatalf("interface %s up: %v", name, err)
	}
	return link
}

// Sysctl sets a value inside the namespace; key is a path below /proc/sys.
func (n *NS) Sysctl(key, value string) {
	n.t.Helper()
	n.Do(func() {
		if err := os.WriteFile("/proc/sys/"+key, []byte(value), 0); err != nil {
			n.t.Fatal(err)
		}
	})
}

// Forward makes the namespace a router for both IP versions.
func (n *NS) Forward() {
	n.t.Helper()
	n.Sysctl("net/ipv4/ip_forward", "1")
	n.Sysctl("net/ipv6/conf/all/forwarding", "1")
}

// Route adds a route to a prefix by a gateway's address.
func (n *NS) Route(prefix, via string) {
	n.t.Helper()
	to, err := netip.ParsePrefix(prefix)
	if err != nil {
		n.t.Fatal(err)
	}
	gateway, err := netip.ParseAddr(via)
	if err != nil {
		n.t.Fatal(err)
	}
	n.Do(func() {
		route := &netlink.Route{
			Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())},
			Gw:  gateway.AsSlice(),
		}
		if err := netlink.RouteAdd(route); err != nil {
			n.t.Fatalf("route to %s by %s: %v", prefix, via, err)
		}
	})
}

// Neighbour makes an address known on an interface, so that nothing is asked for.
func (n *NS) Neighbour(name, addr, mac string) {
	n.t.Helper()
	n.Do(func() {
		link, err := netlink.LinkByName(name)
		if err != nil {
			n.t.Fatal(err)
		}
		neighbour := &netlink.Neigh{
			LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: net.ParseIP(addr), HardwareAddr: parseMAC(n.t, mac),
		}
		if err := netlink.NeighSet(neighbour); err != nil {
			n.t.Fatalf("neighbour %s: %v", addr, err)
		}
	})
}

// Offload turns an offload of an interface on or off, as ethtool -K does: "tx-udp-segmentation", "tx-checksum-ip-generic".
func (n *NS) Offload(name, feature string, on bool) {
	n.t.Helper()
	value := "off"
	if on {
		value = "on"
	}
	var out []byte
	var err error
	n.Do(func() { out, err = exec.Command("ethtool", "-K", name, feature, value).CombinedOutput() })
	if err != nil {
		n.t.Skipf("needs ethtool to set %s: %v: %s", feature, err, strings.TrimSpace(string(out)))
	}
}

// MountBPF mounts a BPF file system on a temporary folder until the test ends.
func MountBPF(t testing.TB) string {
	t.Helper()
	NeedRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0700"); err != nil {
		t.Skipf("needs a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}
