// SPDX-License-Identifier: Apache-2.0

package fec

import "encoding/binary"

// MaxHead is the room for headers in a cell, in octets. Ethernet, IPv6 and UDP
// need 62.
const MaxHead = 64

// prefix is the length of the length field in a source symbol (section 4.1).
const prefix = 2

// Cell is memory for one symbol and the headers of its packet. The symbol
// starts at a multiple of 64 octets; the headers end where the symbol begins.
// Cells come from [Pool.Get] and are owned by the caller until [Pool.Put].
type Cell struct {
	mem  []byte // MaxHead octets of head, then the symbol; len is MaxHead + stride
	head int    // octets of headers held
	next *Cell  // list of free or of given-back cells
	pool *Pool
	out  bool // handed out and not given back
}

// room returns the octets of the cell's symbol memory.
func (c *Cell) room() int { return len(c.mem) - MaxHead }

// Set makes the cell hold the packet with these headers and this UDP payload:
// it copies both, prefixes the payload with its length, and zeroes the rest of
// the symbol up to Stride(T). It returns ErrTooLong, and changes nothing, if
// the payload is longer than T-2 octets, the headers are longer than MaxHead,
// or the cell was not made for a T of this size.
func (c *Cell) Set(head, payload []byte, T int) error { return c.SetLed(head, nil, payload, T) }

// SetLed is Set for a packet of which more is coded than its UDP payload: the
// payload that it stores is lead and payload, one behind the other (section
// 4.4, rule 3).
func (c *Cell) SetLed(head, lead, payload []byte, T int) error {
	size := len(lead) + len(payload)
	if prefix+size > T || len(head) > MaxHead || Stride(T) > c.room() {
		return ErrTooLong
	}
	c.setHead(head)
	s := c.mem[MaxHead:]
	binary.BigEndian.PutUint16(s, uint16(size))
	n := prefix + copy(s[prefix:], lead)
	n += copy(s[n:], payload)
	clear(s[n:Stride(T)])
	return nil
}

// SetHead replaces the headers only, for instance those of a restored packet.
// It returns ErrTooLong, and changes nothing, if they are longer than MaxHead.
func (c *Cell) SetHead(head []byte) error {
	if len(head) > MaxHead {
		return ErrTooLong
	}
	c.setHead(head)
	return nil
}

// setHead stores headers that fit, so that they end where the symbol begins.
func (c *Cell) setHead(head []byte) {
	c.head = copy(c.mem[MaxHead-len(head):MaxHead], head)
}

// SetSymbol makes the cell hold a symbol as it stands, for instance that of a
// REPAIR, and zeroes the rest up to Stride(len(symbol)). The cell has no
// headers then. It returns ErrTooLong, and changes nothing, if the cell was not
// made for a symbol of this size.
func (c *Cell) SetSymbol(symbol []byte) error {
	if Stride(len(symbol)) > c.room() {
		return ErrTooLong
	}
	c.head = 0
	s := c.mem[MaxHead:]
	clear(s[copy(s, symbol):Stride(len(symbol))])
	return nil
}

// Head returns the headers, from the Ethernet header to the UDP header. It
// aliases the cell.
func (c *Cell) Head() []byte { return c.mem[MaxHead-c.head : MaxHead] }

// Len returns the octets of the payload, as the symbol's length prefix says,
// but never more than the cell can hold. For a decoded symbol it means nothing
// before [Cell.Parse] has succeeded.
func (c *Cell) Len() int {
	return min(int(binary.BigEndian.Uint16(c.mem[MaxHead:])), c.room()-prefix)
}

// Payload returns the UDP payload, Len octets. It aliases the cell.
func (c *Cell) Payload() []byte {
	return c.mem[MaxHead+prefix:][:c.Len():c.Len()]
}

// Symbol returns the first T octets of the symbol, with a capacity of
// Stride(T), so that it can be a [Row]'s symbol. It aliases the cell, and is
// nil if the cell was not made for a T of this size.
func (c *Cell) Symbol(T int) []byte {
	if T < 0 || Stride(T) > c.room() {
		return nil
	}
	return c.mem[MaxHead:][:T:Stride(T)]
}

// Parse checks that the cell's symbol is a source symbol of length T and
// returns its payload, which aliases the cell. It returns ErrSymbol if the
// length prefix is more than T-2 or if an octet of the padding is not zero. It
// does not look at the payload.
func (c *Cell) Parse(T int) ([]byte, error) {
	s := c.Symbol(T)
	if len(s) < prefix {
		return nil, ErrSymbol
	}
	end := prefix + int(binary.BigEndian.Uint16(s))
	if end > T || !zero(s[end:]) {
		return nil, ErrSymbol
	}
	return s[prefix:end:end], nil
}

// zero reports whether all octets of b are zero.
func zero(b []byte) bool {
	var v uint64
	for ; len(b) >= 8; b = b[8:] {
		v |= binary.NativeEndian.Uint64(b)
	}
	for _, x := range b {
		v |= uint64(x)
	}
	return v == 0
}
