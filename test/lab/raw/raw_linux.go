// SPDX-License-Identifier: Apache-2.0

// Package raw sends and receives whole Ethernet frames on one interface through AF_PACKET, in batches and without allocation: a TPACKET_V2 ring whose
// slots may be kept as long as the caller likes, and sendmmsg past the queueing discipline.
//
// TPACKET_V2 and not V3: a frame is there at once, not when a block of frames is retired, which takes milliseconds.
package raw

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	blockSize = 128 << 10
	// ringHead is what TPACKET_V2 puts in front of a frame, rounded up generously.
	ringHead = 128
)

// Frame is one received frame.
type Frame struct {
	Data []byte        // valid until Release of the slot; may be written to
	Slot uint32        // for Release
	Age  time.Duration // since the kernel got it; negative if it did after the caller looked at its clock
	// Unfinished says that the frame is not what a wire carries: a checksum left to the device, a VLAN tag taken off, or cut.
	Unfinished bool
}

// Ring receives the frames that arrive at an interface.
type Ring struct {
	fd       int
	mem      []byte
	slotSize int
	perBlock int
	slots    uint32
	next     uint32
	held     []bool // slots that the caller keeps: the ring may come round to them
	heldN    int
	drops    uint64
}

// OpenRing opens a ring with at least the given number of slots for frames up to mtu (of IP) on an interface. filter, if any, is a classic BPF
// program that says which frames. Every page is touched before it returns.
func OpenRing(ifindex, mtu, slots int, filter []unix.SockFilter) (*Ring, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	r := &Ring{fd: fd}
	if err := r.setup(ifindex, mtu, slots, filter); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Ring) setup(ifindex, mtu, slots int, filter []unix.SockFilter) error {
	r.slotSize = (mtu + 18 + ringHead + 63) &^ 63
	r.perBlock = blockSize / r.slotSize
	if r.perBlock == 0 {
		return fmt.Errorf("MTU %d is too large for a ring", mtu)
	}
	blocks := (slots + r.perBlock - 1) / r.perBlock
	r.slots = uint32(blocks * r.perBlock)
	if err := unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2); err != nil {
		return fmt.Errorf("TPACKET_V2: %w", err)
	}
	if err := unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		return fmt.Errorf("PACKET_IGNORE_OUTGOING: %w", err)
	}
	if len(filter) > 0 {
		prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.SetsockoptSockFprog(r.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
			return fmt.Errorf("attach filter: %w", err)
		}
	}
	req := unix.TpacketReq{Block_size: blockSize, Block_nr: uint32(blocks), Frame_size: uint32(r.slotSize), Frame_nr: r.slots}
	if err := unix.SetsockoptTpacketReq(r.fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req); err != nil {
		return fmt.Errorf("receive ring of %d blocks: %w", blocks, err)
	}
	mem, err := unix.Mmap(r.fd, 0, blocks*blockSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("map ring: %w", err)
	}
	r.mem, r.held = mem, make([]bool, r.slots)
	for at := 0; at < len(mem); at += 4096 {
		mem[at] = 0 // the first touch of a page costs microseconds on virtual machines
	}
	sa := &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: ifindex}
	if err := unix.Bind(r.fd, sa); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return nil
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

func (r *Ring) slot(i uint32) []byte {
	at := int(i)/r.perBlock*blockSize + int(i)%r.perBlock*r.slotSize
	return r.mem[at : at+r.slotSize]
}

// Next returns the next received frame, which stays in its slot until Release. realNow is the wall clock, from which the age is reckoned.
func (r *Ring) Next(realNow time.Time) (f Frame, ok bool) {
	if r.held[r.next] {
		return f, false // every slot is in use
	}
	s := r.slot(r.next)
	h := (*unix.Tpacket2Hdr)(unsafe.Pointer(&s[0]))
	status := atomic.LoadUint32(&h.Status)
	if status&unix.TP_STATUS_USER == 0 {
		return f, false
	}
	f.Data = s[h.Mac : uint32(h.Mac)+h.Snaplen]
	f.Slot = r.next
	f.Age = realNow.Sub(time.Unix(int64(h.Sec), int64(h.Nsec)))
	f.Unfinished = status&(unix.TP_STATUS_CSUMNOTREADY|unix.TP_STATUS_VLAN_VALID) != 0 || h.Snaplen < h.Len
	r.held[r.next] = true
	r.heldN++
	if r.next++; r.next == r.slots {
		r.next = 0
	}
	return f, true
}

// Release gives a slot back to the kernel. Slots may be released in any order, but the kernel fills them in ring order.
func (r *Ring) Release(slot uint32) {
	r.held[slot] = false
	r.heldN--
	h := (*unix.Tpacket2Hdr)(unsafe.Pointer(&r.slot(slot)[0]))
	atomic.StoreUint32(&h.Status, unix.TP_STATUS_KERNEL)
}

// Data returns the frame in a slot that is not released.
func (r *Ring) Data(slot uint32) []byte {
	s := r.slot(slot)
	h := (*unix.Tpacket2Hdr)(unsafe.Pointer(&s[0]))
	return s[h.Mac : uint32(h.Mac)+h.Snaplen]
}

// Held returns how many slots the caller keeps; Slots how many there are.
func (r *Ring) Held() int { return r.heldN }

// Slots returns the number of slots.
func (r *Ring) Slots() int { return int(r.slots) }

// Dropped returns how many frames found no free slot since the ring was opened.
func (r *Ring) Dropped() uint64 {
	if s, err := unix.GetsockoptTpacketStats(r.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		r.drops += uint64(s.Drops)
	}
	return r.drops
}

// FD is readable when a frame is there.
func (r *Ring) FD() int { return r.fd }

// Close frees the ring.
func (r *Ring) Close() error {
	if r.mem != nil {
		_ = unix.Munmap(r.mem)
		r.mem = nil
	}
	return unix.Close(r.fd)
}
