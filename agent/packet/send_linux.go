// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	segmentsPerSlot = 8
	// Bounds of one super-packet: the kernel takes 64 segments in every version, and an IP packet of 64 KB.
	mostSegments      = 64
	mostSegmentOctets = 65000
	// How long runs are not segmented after the kernel could not (an IPsec policy on the way, for one).
	segmentPause = time.Second
)

// letter is one queued message.
type letter struct {
	to   netip.AddrPort
	from Source
	tos  uint8
	size int
}

// follows tells whether m may be the next segment of a run that begins with l and whose last message is last.
func (l *letter) leads(last, m *letter) bool {
	return l.size == last.size && m.size <= l.size && l.to == m.to && l.from == m.from && l.tos == m.tos
}

// outbox is the queue of messages to send, and the memory for the system call.
type outbox struct {
	letters []letter
	parts   []unix.Iovec // one a letter
	n       int

	runs    []mmsghdr
	first   []int // index of the first letter of each run
	names   [][nameLen]byte
	control [][controlLen]byte

	tries   int
	single  time.Duration // until then, no segments
	refused func(i int, err unix.Errno) bool
}

func (o *outbox) init(n int) {
	o.letters = make([]letter, n)
	o.parts = make([]unix.Iovec, n)
	o.runs = make([]mmsghdr, n)
	o.first = make([]int, n)
	o.names = make([][nameLen]byte, n)
	o.control = make([][controlLen]byte, n)
	for i := range o.runs {
		o.runs[i].hdr.Name, o.runs[i].hdr.Control = &o.names[i][0], &o.control[i][0]
	}
}

func (v *version) send(to netip.AddrPort, from Source, tos uint8, msg []byte) {
	o := &v.out
	if len(msg) == 0 {
		return
	}
	o.letters[o.n] = letter{to: to, from: from, tos: tos, size: len(msg)}
	o.parts[o.n].Base = unsafe.SliceData(msg)
	o.parts[o.n].SetLen(len(msg))
	o.n++
	if o.n == len(o.letters) {
		v.flush()
	}
}

func (v *version) flush() {
	o := &v.out
	if o.n == 0 {
		return
	}
	if o.refused == nil {
		o.refused = v.refuse
	}
	segment := o.single == 0 || Now() > o.single
	runs := 0
	for start := 0; start < o.n; runs++ {
		end := start + 1
		for segment && o.extends(start, end) {
			end++
		}
		v.address(runs, start, end)
		start = end
	}
	before := v.stats.TooBig + v.stats.Failed
	sendmmsg(v.fd, o.runs[:runs], o.refused)
	v.stats.Sent += uint64(o.n) - (v.stats.TooBig + v.stats.Failed - before)
	o.n, o.tries = 0, 0
}

// extends tells whether letter end may be a segment of the run start..end-1.
func (o *outbox) extends(start, end int) bool {
	return end < o.n && end-start < mostSegments && (end-start+1)*o.letters[start].size <= mostSegmentOctets &&
		o.letters[start].leads(&o.letters[end-1], &o.letters[end])
}

// address fills system call slot i with letters start..end-1.
func (v *version) address(i, start, end int) {
	o := &v.out
	l := &o.letters[start]
	o.first[i] = start
	h := &o.runs[i].hdr
	h.Iov = &o.parts[start]
	h.SetIovlen(end - start)
	h.Namelen = putName(&o.names[i], l.to)
	c := o.control[i][:0]
	if v.ipv6 {
		c = appendControl(c, unix.SOL_IPV6, unix.IPV6_TCLASS, int32(l.tos))
		if l.from != (Source{}) {
			c = appendControl(c, unix.SOL_IPV6, unix.IPV6_PKTINFO, unix.Inet6Pktinfo{Addr: l.from.as16(), Ifindex: uint32(l.from.Ifindex)})
		}
	} else {
		c = appendControl(c, unix.SOL_IP, unix.IP_TOS, int32(l.tos))
		if l.from != (Source{}) {
			c = appendControl(c, unix.SOL_IP, unix.IP_PKTINFO, unix.Inet4Pktinfo{Spec_dst: l.from.as4(), Ifindex: int32(l.from.Ifindex)})
		}
	}
	if end-start > 1 {
		c = appendControl(c, unix.SOL_UDP, unix.UDP_SEGMENT, uint16(l.size))
		v.stats.Segmented += uint64(end - start)
	}
	h.SetControllen(len(c))
}

// as16 and as4 are the address as the kernel wants it: zeros where it is to choose, and where the family is another one.
func (s Source) as16() (a [16]byte) {
	if s.Addr.Is6() {
		a = s.Addr.As16()
	}
	return a
}

func (s Source) as4() (a [4]byte) {
	if s.Addr.Is4() {
		a = s.Addr.As4()
	}
	return a
}

// putName writes a socket address and returns its length.
func putName(name *[nameLen]byte, to netip.AddrPort) uint32 {
	*name = [nameLen]byte{2: uint8(to.Port() >> 8), 3: uint8(to.Port())}
	family := (*uint16)(unsafe.Pointer(name))
	if to.Addr().Is4() {
		*family = unix.AF_INET
		a := to.Addr().As4()
		copy(name[4:], a[:])
		return unix.SizeofSockaddrInet4
	}
	*family = unix.AF_INET6
	a := to.Addr().As16()
	copy(name[8:], a[:])
	return unix.SizeofSockaddrInet6
}

// appendControl appends a control message; there is room for all that address makes.
func appendControl[T any](c []byte, level, kind int32, value T) []byte {
	size := int(unsafe.Sizeof(value))
	at := len(c)
	c = c[:at+unix.CmsgSpace(size)]
	h := (*unix.Cmsghdr)(unsafe.Pointer(&c[at]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(size))
	*(*T)(unsafe.Pointer(&c[at+unix.CmsgLen(0)])) = value
	return c
}

// refuse decides about a run that the kernel did not take.
func (v *version) refuse(i int, err unix.Errno) bool {
	o := &v.out
	n := int(o.runs[i].hdr.Iovlen)
	switch {
	case full(err) && o.tries < mostRetries:
		o.tries++
		pause()
		return true
	case n > 1 && (err == unix.EIO || err == unix.EINVAL || err == unix.EMSGSIZE || err == unix.EOPNOTSUPP):
		// Not as segments: each message on its own then says what is wrong with it.
		if err != unix.EMSGSIZE {
			o.single = Now() + segmentPause
		}
		v.stats.Segmented -= uint64(n)
		v.sendSingly(i, n)
	case err == unix.EMSGSIZE:
		v.stats.TooBig += uint64(n)
	default:
		v.stats.Failed += uint64(n)
	}
	o.tries = 0
	return false
}

// sendSingly sends the letters of run i one by one, out of its slot.
func (v *version) sendSingly(i, n int) {
	first := v.out.first[i]
	for l := first; l < first+n; l++ {
		v.address(i, l, l+1)
		sendmmsg(v.fd, v.out.runs[i:i+1], func(_ int, err unix.Errno) bool { return v.refuse(i, err) })
	}
}
