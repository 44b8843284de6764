// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/klauspost/cpuid/v2"
	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/uplink"
)

// Options say what to look at.
type Options struct {
	Uplinks []string       // names; with Remote and no names: the interfaces that route there
	Remote  []netip.Prefix // of the other sites
	// Management are addresses that the node itself needs; the interfaces that lead there are uplinks only by name.
	Management []netip.Addr
	K          int  // largest block of the profiles; 0: 32, the default
	Tunnels    bool // a domain has spec.wan. Where repairs fit an uplink, source packets fit tunnels of the same outer IP version
	PinDir     string
}

const defaultK = 32

// Run looks at this node. It needs the agent's rights to tell all; what it may not try is unknown.
func Run(o Options) *Report {
	if o.K == 0 {
		o.K = defaultK
	}
	r := &Report{K: o.K, Architecture: runtime.GOARCH, Processors: runtime.NumCPU(), Uplinks: []Uplink{}, Works: []string{}, Lacks: []string{}}
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		r.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	r.Capabilities = capabilities()
	for _, f := range featureTable(o) {
		r.Features = append(r.Features, f.check())
	}
	if len(o.Uplinks) == 0 && len(o.Remote) == 0 {
		r.UplinkNote = "No uplink was looked at: name domains with -f, or interfaces with --uplink."
	} else if facts, err := uplink.Find(uplink.Config{Names: o.Uplinks, Remote: o.Remote, Management: o.Management}); err != nil {
		r.UplinkNote = "The uplinks could not be looked at: " + err.Error() + "."
	} else {
		r.addUplinks(facts)
	}
	r.judge()
	return r
}

// capabilities compares what this process may do with what the agent needs.
func capabilities() []Check {
	held, err := effective()
	var checks []Check
	for _, c := range []struct {
		name         string
		bit          int
		required     bool
		use, without string
	}{
		{"CAP_BPF", unix.CAP_BPF, true, "loads the programs of the uplinks and their maps", "no program can be loaded: nothing is restored in order, no domain boundary is kept"},
		{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN, true, "attaches programs to the uplinks, answers on the path with the endpoint's address, reads IPsec policies", "no program can be attached and no peer on the path answered"},
		{"CAP_NET_RAW", unix.CAP_NET_RAW, true, "sees leaving packets and puts restored ones back", "no packet can be seen or restored"},
		{"CAP_SYS_NICE", unix.CAP_SYS_NICE, false, "runs the packet workers before ordinary programs", "on a busy node the workers are kept waiting, and their flows pass unprotected meanwhile"},
	} {
		check := Check{Name: c.name, Required: c.required, State: OK, Use: c.use, Without: c.without}
		switch {
		case err != nil:
			check.State, check.Detail = Unknown, err.Error()
		case held&(1<<c.bit) == 0 && (c.bit != unix.CAP_BPF || held&(1<<unix.CAP_SYS_ADMIN) == 0): // SYS_ADMIN includes BPF
			check.State, check.Detail = Missing, "run as root, or give the process "+c.name
		}
		checks = append(checks, check)
	}
	return checks
}

func effective() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0, fmt.Errorf("read the capabilities of this process: %w", err)
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), nil
}

// feature is one check of the kernel or the processor.
type feature struct {
	name         string
	required     bool
	use, without string
	try          func() error
}

func (f feature) check() Check {
	c := Check{Name: f.name, Required: f.required, State: OK, Use: f.use, Without: f.without}
	if err := f.try(); err != nil {
		c.State, c.Detail = Missing, err.Error()
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, bpf.ErrPermission) {
			c.State = Unknown
		}
	}
	return c
}

func featureTable(o Options) []feature {
	withoutPins := "a restart of the agent detaches its programs for a moment; traffic passes all the same"
	if o.Tunnels {
		withoutPins += "; other sites put no flow into a tunnel to this node"
	}
	table := []feature{
		{"BPF mmapable arrays", true, "hands copies of packets to the agent without a system call", "nothing can be restored",
			func() error { return features.HaveMapFlag(features.BPF_F_MMAPABLE) }},
		{"TCX", true, "programs on both sides of the uplinks, exchanged in place without a gap", "nothing can be restored in order: Linux 6.6 or later is needed", tryTCX},
		{"kernel programs", true, "the agent's own programs pass this kernel's verifier", "nothing can be restored in order, no domain boundary is kept", tryPrograms},
		{"AF_PACKET V3", true, "sees leaving packets in batches", "no flow can be protected", tryPacketRing},
		{"IP_TRANSPARENT", true, "answers on the path with the endpoint's address", "peers without configured gateways get no answer",
			func() error {
				return trySocket(unix.AF_INET, unix.SOCK_DGRAM, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1) })
			}},
		{"IPV6_TRANSPARENT", true, "the same for IPv6", "peers without configured gateways get no answer over IPv6",
			func() error {
				return trySocket(unix.AF_INET6, unix.SOCK_DGRAM, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1) })
			}},
		{"UDP_SEGMENT", false, "sends the repairs of a block by one system call", "repairs cost about twice the processor time",
			func() error {
				return trySocket(unix.AF_INET, unix.SOCK_DGRAM, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, 1200) })
			}},
		{"BPF file system", false, "keeps programs attached while the agent restarts", withoutPins,
			func() error { return tryPins(o.PinDir) }},
		{"XFRM", false, "reads the IPsec policies of domains with ipsec mode Required", "domains with ipsec mode Required are not protected",
			func() error {
				fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_XFRM)
				if err != nil {
					return fmt.Errorf("open an XFRM socket: %w", err)
				}
				return unix.Close(fd)
			}},
		{"GFNI and AVX-512", false, "codes blocks with the fastest kernel", "coding is several times slower, yet right", tryGFNI},
	}
	if o.Tunnels {
		table = append(table, feature{"programs of tunnels", false, "put flows into the tunnels of spec.wan and take them out", "flows leave outside of tunnels, protected as before", tryTunnels})
	}
	return table
}

// tryTCX tries to attach to an interface that can not exist: a kernel with TCX misses the interface, one without the attach type.
func tryTCX() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	if err != nil {
		return fmt.Errorf("load a program: %w", err)
	}
	defer func() { _ = p.Close() }()
	l, err := link.AttachTCX(link.TCXOptions{Interface: math.MaxInt32, Program: p, Attach: ebpf.AttachTCXIngress})
	if err == nil {
		return l.Close()
	}
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return fmt.Errorf("attach a program: %w", err)
}

// tryPrograms loads the real programs with small rings, and drops them.
func tryPrograms() error {
	const slot = 9216 + 14
	o, err := bpf.Load(bpf.Config{Workers: 1, SlotOctets: slot, RingSlots: 16, MaxFlows: 16, MaxSeen: 16})
	if err != nil {
		return err
	}
	return o.Close()
}

// tryTunnels loads the programs of tunnels, and drops them.
func tryTunnels() error {
	t, err := bpf.LoadTunnels(bpf.TunnelConfig{})
	if err != nil {
		return err
	}
	return t.Close()
}

func tryPacketRing() error {
	return trySocket(unix.AF_PACKET, unix.SOCK_RAW, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V3)
	})
}

func trySocket(family, kind int, try func(fd int) error) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := try(fd); err != nil {
		return fmt.Errorf("set a socket option: %w", err)
	}
	return nil
}

// tryPins looks at the file system of the pin folder, or of its nearest parent that exists.
func tryPins(dir string) error {
	if dir == "" {
		return errors.New("no pin folder is named")
	}
	at := dir
	var st unix.Statfs_t
	for {
		err := unix.Statfs(at, &st)
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrNotExist) || at == filepath.Dir(at) {
			return fmt.Errorf("look at %s: %w", at, err)
		}
		at = filepath.Dir(at)
	}
	if st.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%s is not on a BPF file system: mount -t bpf bpf /sys/fs/bpf", dir)
	}
	return nil
}

func tryGFNI() error {
	if runtime.GOARCH != "amd64" {
		return errors.New("not of this architecture")
	}
	if !cpuid.CPU.Supports(cpuid.GFNI, cpuid.AVX512F) {
		return errors.New("the processor lacks it")
	}
	return nil
}
