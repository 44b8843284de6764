// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TapConfig says what to tap. Ifindex, Workers and Mark are required; zero elsewhere takes the default.
type TapConfig struct {
	Ifindex     int
	Workers     int
	Bare        bool          // the uplink's packets have no Ethernet header; those of its frames are zeros
	Mark        uint32        // of injected frames, which are not tapped a second time
	Recognised  Recognised    // transports beside RoCEv2
	BlockOctets int           // default 1 MiB; small blocks mean many wake-ups
	Blocks      int           // default 32
	Retire      time.Duration // how long a frame may wait in a block that does not fill; default and least 1 ms
}

// tap is one TPACKET_V3 ring. A block goes back and forth between kernel and user space as a whole.
type tap struct {
	fd         int
	ifindex    int
	bare       bool
	mark       uint32
	recognised Recognised
	tunnels    bool // it looks into them
	memory     []byte
	size       int // octets of a block
	blocks     int

	done    int    // oldest block not given back
	current int    // block being read
	left    uint32 // frames left in the current block, if open
	open    bool
	at      int           // offset of the next frame in memory
	shift   time.Duration // from CLOCK_REALTIME to CLOCK_MONOTONIC, when the current block was opened

	stats TapStats
}

// OpenTaps opens the taps of an uplink, one a worker. The worker of a frame is PairWorker of its addresses.
// It needs the capabilities NET_RAW and NET_ADMIN.
func OpenTaps(c TapConfig) (taps []Tap, err error) {
	if c.BlockOctets == 0 {
		c.BlockOctets = 1 << 20
	}
	if c.Blocks == 0 {
		c.Blocks = 32
	}
	c.Retire = max(c.Retire, time.Millisecond)
	if c.Workers < 1 || c.BlockOctets < 0 || c.Blocks < 1 {
		return nil, fmt.Errorf("packet: tap with %d workers, %d blocks of %d octets", c.Workers, c.Blocks, c.BlockOctets)
	}
	defer func() {
		if err != nil {
			for _, t := range taps {
				err = errors.Join(err, t.Close())
			}
			taps = nil
		}
	}()
	group := 0
	for range c.Workers {
		t, err := openTap(c)
		if err != nil {
			return taps, fmt.Errorf("packet: tap interface %d: %w", c.Ifindex, err)
		}
		taps = append(taps, t)
		if c.Workers > 1 {
			if group, err = t.join(group); err != nil {
				return taps, fmt.Errorf("packet: group the taps of interface %d: %w", c.Ifindex, err)
			}
		}
	}
	return taps, Refilter(taps, c.Recognised) // now that every tap has its place in the group: a frame must not reach a wrong worker
}

// Refilter makes taps of OpenTaps copy the packets of these transports from now on.
func Refilter(taps []Tap, r Recognised) error {
	for _, x := range taps {
		t := x.(*tap)
		t.recognised = r
		if err := t.refilter(); err != nil {
			return err
		}
	}
	return nil
}

func openTap(c TapConfig) (*tap, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	t := &tap{fd: fd, ifindex: c.Ifindex, bare: c.Bare, mark: c.Mark, size: c.BlockOctets, blocks: c.Blocks}
	if err := t.setUp(c); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *tap) setUp(c TapConfig) error {
	nothing, err := dropFilter()
	if err != nil {
		return err
	}
	const frame = 2048 // only a unit of the ring's size
	room := 0
	if c.Bare {
		room = bareRoom
	}
	request := unix.TpacketReq3{
		Block_size: uint32(c.BlockOctets), Block_nr: uint32(c.Blocks), Frame_size: frame,
		Frame_nr:       uint32(c.BlockOctets / frame * c.Blocks),
		Retire_blk_tov: uint32(c.Retire / time.Millisecond),
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"ring version", func() error {
			return unix.SetsockoptInt(t.fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V3)
		}},
		{"room for a header", func() error { return unix.SetsockoptInt(t.fd, unix.SOL_PACKET, unix.PACKET_RESERVE, room) }},
		{"header of offloads", func() error { return unix.SetsockoptInt(t.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1) }},
		{"filter", func() error { return setFilter(t.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, nothing) }},
		{"ring", func() error { return unix.SetsockoptTpacketReq3(t.fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &request) }},
		{"memory", func() (err error) {
			t.memory, err = unix.Mmap(t.fd, 0, c.BlockOctets*c.Blocks, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			return err
		}},
		{"bind", func() error {
			const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8 // network order
			return unix.Bind(t.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: c.Ifindex})
		}},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	touch(t.memory)
	return nil
}

// touch writes every page once: a first touch inside the packet loop can cost tens of microseconds on a virtual machine.
// Adding nothing disturbs no one.
func touch(memory []byte) {
	for i := 0; i < len(memory); i += os.Getpagesize() {
		(*atomic.Uint64)(unsafe.Pointer(&memory[i])).Add(0)
	}
}

// LookIntoTunnels implements Tap.
func (t *tap) LookIntoTunnels(on bool) error {
	t.tunnels = on
	return t.refilter()
}

// refilter makes the kernel copy what the tap is to see. One goroutine at a time may change that.
func (t *tap) refilter() error {
	link := uint32(ethernetLen)
	if t.bare {
		link = 0
	}
	filter, err := tapFilter(t.mark, link, t.tunnels, t.recognised)
	if err != nil {
		return err
	}
	if err := setFilter(t.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, filter); err != nil {
		return fmt.Errorf("packet: filter of tap: %w", err)
	}
	return nil
}

// join enters the group of the uplink's taps; group 0 makes a new one, with a number that nobody else has.
func (t *tap) join(group int) (int, error) {
	how := unix.PACKET_FANOUT_CBPF
	if group == 0 {
		how |= unix.PACKET_FANOUT_FLAG_UNIQUEID
	}
	if err := unix.SetsockoptInt(t.fd, unix.SOL_PACKET, unix.PACKET_FANOUT, group|how<<16); err != nil {
		return 0, err
	}
	if group != 0 {
		return group, nil
	}
	filter, err := pairFilter()
	if err != nil {
		return 0, err
	}
	if err := setFilter(t.fd, unix.SOL_PACKET, unix.PACKET_FANOUT_DATA, filter); err != nil {
		return 0, err
	}
	got, err := unix.GetsockoptInt(t.fd, unix.SOL_PACKET, unix.PACKET_FANOUT)
	return got & 0xffff, err
}

func (t *tap) block(i int) *unix.TpacketHdrV1 {
	b := (*unix.TpacketBlockDesc)(unsafe.Pointer(&t.memory[i*t.size]))
	return (*unix.TpacketHdrV1)(unsafe.Pointer(&b.Hdr))
}

func (t *tap) Next(frames []Frame) int {
	n := 0
	for n < len(frames) {
		if t.left == 0 && !t.nextBlock() {
			break
		}
		h := (*unix.Tpacket3Hdr)(unsafe.Pointer(&t.memory[t.at]))
		if t.fill(&frames[n], h) {
			n++
		}
		t.at += int(h.Next_offset)
		t.left--
	}
	t.stats.Frames += uint64(n)
	return n
}

// nextBlock ends the current block and opens the next one, if the kernel has given it.
func (t *tap) nextBlock() bool {
	if t.open {
		t.open = false
		t.current = (t.current + 1) % t.blocks
		if t.current == t.done {
			// Every block is here, waiting for Release.
			t.current = (t.current + t.blocks - 1) % t.blocks
			t.open = true
			return false
		}
	}
	h := t.block(t.current)
	if atomic.LoadUint32(&h.Block_status)&unix.TP_STATUS_USER == 0 {
		return false
	}
	t.open, t.left = true, h.Num_pkts
	t.at = t.current*t.size + int(h.Offset_to_first_pkt)
	t.shift = Now() - time.Duration(time.Now().UnixNano())
	return t.left > 0 || t.nextBlock()
}

const (
	vnetHeaderLen    = 10 // struct virtio_net_hdr, right before what the kernel copies
	vnetGSOType      = 1
	nanosPerSecond   = 1_000_000_000
	statusVLAN       = unix.TP_STATUS_VLAN_VALID
	statusNoChecksum = unix.TP_STATUS_CSUMNOTREADY
)

// fill makes a Frame of what the ring has. False: the frame is of no use.
func (t *tap) fill(f *Frame, h *unix.Tpacket3Hdr) bool {
	start := t.at + int(h.Mac)
	end := start + int(h.Snaplen)
	link := (*unix.RawSockaddrLinklayer)(unsafe.Pointer(&t.memory[t.at+tpacket3HdrLen]))
	super := t.memory[start-vnetHeaderLen+vnetGSOType] != 0
	length := int(h.Len)
	if t.bare {
		start -= ethernetLen
		putBareHeader(t.memory[start:], link.Protocol)
		length += ethernetLen
	}
	*f = Frame{
		Data: t.memory[start:end:end], Len: length,
		Time:    time.Duration(int64(h.Sec)*nanosPerSecond+int64(h.Nsec)) + t.shift,
		Ifindex: t.ifindex, Flow: NoFlow,
	}
	if link.Pkttype == pktTypeOutgoing {
		f.Flags |= Outgoing
	}
	if h.Status&statusVLAN != 0 {
		f.Flags |= VLAN
	}
	if super {
		f.Flags |= GSO
	}
	if h.Snaplen < h.Len {
		f.Flags |= Cut
		if f.Flags&(Outgoing|GSO) == Outgoing {
			t.stats.Bad++
			return false
		}
	}
	f.openTunnel()
	if h.Status&statusNoChecksum != 0 {
		f.Flags |= PartialChecksum
		if f.Flags&(Cut|GSO) == 0 {
			FinishChecksum(f.Data)
		}
	}
	return true
}

// tpacket3HdrLen is where the link-layer address follows: struct tpacket3_hdr, aligned to 16.
const tpacket3HdrLen = (int(unsafe.Sizeof(unix.Tpacket3Hdr{})) + 15) / 16 * 16

func (t *tap) Release() {
	for t.done != t.current {
		atomic.StoreUint32(&t.block(t.done).Block_status, unix.TP_STATUS_KERNEL)
		t.done = (t.done + 1) % t.blocks
	}
	if t.open && t.left == 0 {
		t.open = false
		atomic.StoreUint32(&t.block(t.done).Block_status, unix.TP_STATUS_KERNEL)
		t.done = (t.done + 1) % t.blocks
		t.current = t.done
	}
}

func (t *tap) FD() int { return t.fd }

// Gone asks the socket, which the kernel takes off an interface that goes.
func (t *tap) Gone() bool {
	addr, err := unix.Getsockname(t.fd)
	on, ok := addr.(*unix.SockaddrLinklayer)
	return err != nil || !ok || on.Ifindex <= 0
}

func (t *tap) Stats() TapStats {
	// The kernel's counters begin anew with each reading.
	if s, err := unix.GetsockoptTpacketStatsV3(t.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		t.stats.Dropped += uint64(s.Drops)
	}
	return t.stats
}

func (t *tap) Close() error {
	var err error
	if t.memory != nil {
		err = unix.Munmap(t.memory)
		t.memory = nil
	}
	if t.fd >= 0 {
		err = errors.Join(err, unix.Close(t.fd))
		t.fd = -1
	}
	return err
}
