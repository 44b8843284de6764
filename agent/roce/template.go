// SPDX-License-Identifier: Apache-2.0

package roce

import "encoding/binary"

// Template is the masked headers of one flow direction: what the ICRC of every packet of the flow begins with. It
// computes ICRCs without a head at hand and finds the IPv4 Identification that a restored packet must have had.
//
// The zero Template must be Set before use. A Template is not safe for concurrent use: SolveID keeps what depends
// only on the length of P in a cache of fixed size.
type Template struct {
	crc     uint32 // state after the ones and the first two octets of the IP header
	n       uint8  // octets of h
	h       [ipv6Len + udpLen]byte
	unshift [unshifts]unshift
}

// unshifts bounds the cache: a flow has few packet lengths.
const unshifts = 8

// unshift takes the effect of the Identification at the end of a packet of n octets of payload back to its place.
type unshift struct {
	n      uint32
	factor uint32
}

// Set takes the headers of any packet of the flow, as Packet.Head returns them: addresses, ports, IPv4 flags. Lengths and
// Identification don't matter.
func (t *Template) Set(head []byte) {
	ipudp := head[EthernetLen:]
	t.n = uint8(mask(t.h[:], ipudp))
	t.crc = updateShort(crcOfOnes, t.h[:2])
}

// Compute returns the ICRC of P under the flow's headers, as the number stored in its last four octets, least
// significant octet first. id is the IPv4 Identification, ignored for IPv6. len(P) must be at least MinPayload.
func (t *Template) Compute(p []byte, id uint16) uint32 {
	var b [ipv6Len + udpLen + bthLen]byte
	n := copy(b[:], t.h[:t.n])
	if t.ipv4() {
		binary.BigEndian.PutUint16(b[2:], uint16(ipv4Len+udpLen+len(p)))
		binary.BigEndian.PutUint16(b[4:], id)
	} else {
		binary.BigEndian.PutUint16(b[4:], uint16(udpLen+len(p)))
	}
	binary.BigEndian.PutUint16(b[n-4:], uint16(udpLen+len(p)))
	return finish(t.crc, b[2:n+bthLen], n-2, p)
}

// SolveID returns the only IPv4 Identification under which the ICRC in P is right (Section 6.5, rule 2). It is false if none
// is: 16 bits of the ICRC determine the Identification, the other 16 check. For IPv6 there is no Identification, and it
// says whether the ICRC is right.
func (t *Template) SolveID(p []byte) (id uint16, ok bool) {
	if len(p) < MinPayload {
		return 0, false
	}
	difference := t.Compute(p, 0) ^ storedICRC(p)
	if !t.ipv4() {
		return 0, difference == 0
	}
	// The CRC is linear: the difference is the Identification times x to the number of bits after it. Its first
	// octet is in the lowest bits of the reflected word.
	v := mul(difference, t.backTo(len(p)))
	return uint16(v)<<8 | uint16(v)>>8, v>>16 == 0
}

func (t *Template) ipv4() bool { return t.n == ipv4Len+udpLen }

// backTo returns x^-e for the e bits from the Identification, its own 16 included, to the ICRC of a payload of n octets.
func (t *Template) backTo(n int) uint32 {
	u := &t.unshift[n/4%unshifts]
	if u.n != uint32(n) {
		const afterID = ipv4Len + udpLen - 6
		*u = unshift{uint32(n), power(-(16 + 8*int64(afterID+n-icrcLen)))}
	}
	return u.factor
}

// Arithmetic in GF(2)[x] modulo the CRC-32 polynomial, reflected: bit 31 is x^0.
const (
	polynomial = 0xedb88320
	one        = 1 << 31
	x          = 1 << 30
	order      = 1<<32 - 1 // of x: the polynomial is primitive
)

// mul returns the product of a and b.
func mul(a, b uint32) uint32 {
	var p uint32
	for range 32 {
		p ^= a & -(b >> 31)
		b <<= 1
		a = a>>1 ^ polynomial&-(a&1)
	}
	return p
}

// power returns x^e, also for a negative e.
func power(e int64) uint32 {
	if e %= order; e < 0 {
		e += order
	}
	r, square := uint32(one), uint32(x)
	for ; e > 0; e >>= 1 {
		if e&1 != 0 {
			r = mul(r, square)
		}
		square = mul(square, square)
	}
	return r
}
