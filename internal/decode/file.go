// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"time"
)

// record is one packet of a capture file.
type record struct {
	time   time.Time
	link   uint16 // link type
	data   []byte // as captured
	length int    // of the packet on the wire
}

// reader reads the records of a capture file; next returns io.EOF after the last.
//
// It is our own because a damaged file must not cost more memory than maxBlock, and because link types have sixteen bits.
type reader interface{ next() (record, error) }

// maxBlock bounds what is read at once: far more than libpcap's largest packet of 256 KiB with its options.
const maxBlock = 1 << 20

var errFormat = errors.New("neither pcap nor pcapng")

// open finds out the file format; a gzipped file is read as what it contains.
func open(r io.Reader) (reader, error) {
	b := bufio.NewReader(r)
	if magic, err := b.Peek(2); err == nil && binary.BigEndian.Uint16(magic) == 0x1f8b {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, err
		}
		b = bufio.NewReader(z)
	}
	magic, err := b.Peek(4)
	if err != nil {
		return nil, errFormat
	}
	if binary.BigEndian.Uint32(magic) == blockSection {
		return &pcapngReader{r: b}, nil
	}
	return newPcapReader(b)
}

// pcapReader reads the classic format: a file header of 24 octets, then records with a header of 16.
type pcapReader struct {
	r     io.Reader
	order binary.ByteOrder
	unit  time.Duration // of the second part of a time
	link  uint16
}

func newPcapReader(r io.Reader) (*pcapReader, error) {
	const micro, nano = 0xa1b2c3d4, 0xa1b23c4d
	var h [24]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, errFormat
	}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		p := &pcapReader{r: r, order: order, link: uint16(order.Uint32(h[20:]))}
		switch order.Uint32(h[:]) {
		case micro:
			p.unit = time.Microsecond
			return p, nil
		case nano:
			p.unit = time.Nanosecond
			return p, nil
		}
	}
	return nil, errFormat
}

func (p *pcapReader) next() (record, error) {
	var h [16]byte
	if _, err := io.ReadFull(p.r, h[:]); err != nil {
		return record{}, err
	}
	captured := p.order.Uint32(h[8:])
	if captured > maxBlock {
		return record{}, fmt.Errorf("a packet of %d octets: damaged file", captured)
	}
	r := record{link: p.link, length: clip(p.order.Uint32(h[12:])), data: make([]byte, captured)}
	r.time = time.Unix(int64(p.order.Uint32(h[:])), int64(p.order.Uint32(h[4:]))*int64(p.unit))
	if _, err := io.ReadFull(p.r, r.data); err != nil {
		return record{}, unexpected(err)
	}
	return r, nil
}

// unexpected makes the end of the file an error: it came inside a record.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// clip makes an int of a length, whatever the file says.
func clip(n uint32) int { return int(min(n, math.MaxInt32)) }

// Block types of pcapng.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 2 // obsolete
	blockSimple    = 3
	blockEnhanced  = 6
)

// pcapngReader reads blocks: type, total length, body padded to 32 bits, total length again.
type pcapngReader struct {
	r          io.Reader
	order      binary.ByteOrder
	interfaces []captureInterface
}

// captureInterface is what a section says about one of its interfaces.
type captureInterface struct {
	link  uint16
	snap  uint32 // most octets of a packet, 0: all
	units uint64 // of time in a second
	start int64  // seconds to add to times
}

func (p *pcapngReader) next() (record, error) {
	for {
		kind, body, err := p.block()
		if err != nil {
			return record{}, err
		}
		switch kind {
		case blockSection:
			p.interfaces = nil
		case blockInterface:
			if err := p.addInterface(body); err != nil {
				return record{}, err
			}
		case blockEnhanced, blockPacket, blockSimple:
			return p.packet(kind, body)
		}
	}
}

var errBlock = errors.New("damaged pcapng block")

// block reads one block and returns its body without the lengths.
func (p *pcapngReader) block() (kind uint32, body []byte, err error) {
	var h [12]byte
	if _, err := io.ReadFull(p.r, h[:8]); err != nil {
		return 0, nil, err
	}
	skip := 8
	if binary.BigEndian.Uint32(h[:]) == blockSection { // says in what order its own length is
		if _, err := io.ReadFull(p.r, h[8:]); err != nil {
			return 0, nil, unexpected(err)
		}
		skip = 12
		switch uint32(0x1a2b3c4d) {
		case binary.LittleEndian.Uint32(h[8:]):
			p.order = binary.LittleEndian
		case binary.BigEndian.Uint32(h[8:]):
			p.order = binary.BigEndian
		default:
			return 0, nil, errBlock
		}
	}
	total := p.order.Uint32(h[4:])
	if total%4 != 0 || total < uint32(skip)+4 || total > maxBlock {
		return 0, nil, errBlock
	}
	b := make([]byte, int(total)-skip)
	if _, err := io.ReadFull(p.r, b); err != nil {
		return 0, nil, unexpected(err)
	}
	return p.order.Uint32(h[:]), b[:len(b)-4], nil
}

// addInterface reads an interface description: link type, snap length, options.
func (p *pcapngReader) addInterface(b []byte) error {
	const resolution, offset = 9, 14
	if len(b) < 8 {
		return errBlock
	}
	i := captureInterface{link: p.order.Uint16(b), snap: p.order.Uint32(b[4:]), units: 1e6}
	for b = b[8:]; len(b) >= 4; {
		code, n := p.order.Uint16(b), int(p.order.Uint16(b[2:]))
		padded := (n + 3) &^ 3
		if b = b[4:]; code == 0 || padded > len(b) {
			break
		}
		switch {
		case code == resolution && n == 1:
			if i.units = unitsPerSecond(b[0]); i.units == 0 {
				return errBlock
			}
		case code == offset && n == 8:
			i.start = int64(p.order.Uint64(b))
		}
		b = b[padded:]
	}
	p.interfaces = append(p.interfaces, i)
	return nil
}

// unitsPerSecond reads a resolution: a negative power of 10, or of 2 with the upper bit set. It is 0 if that is too fine.
func unitsPerSecond(v byte) uint64 {
	if v&0x80 != 0 {
		return 1 << (v & 0x7f) // 0 beyond 63
	}
	if v > 19 {
		return 0
	}
	units := uint64(1)
	for range v {
		units *= 10
	}
	return units
}

// packet reads a block that holds a packet.
//
//	enhanced: interface 32, time 64, captured 32, length 32, data
//	obsolete: interface 16, drops 16, the rest as enhanced
//	simple:   length 32, data
func (p *pcapngReader) packet(kind uint32, b []byte) (record, error) {
	least, number := 20, uint32(0)
	if kind == blockSimple {
		least = 4
	}
	if len(b) < least {
		return record{}, errBlock
	}
	switch kind {
	case blockEnhanced:
		number = p.order.Uint32(b)
	case blockPacket:
		number = uint32(p.order.Uint16(b))
	}
	if uint64(number) >= uint64(len(p.interfaces)) {
		return record{}, errBlock
	}
	i := p.interfaces[number]
	r := record{link: i.link}
	var captured uint32
	if kind == blockSimple {
		captured = p.order.Uint32(b)
		r.length = clip(captured)
		if i.snap != 0 {
			captured = min(captured, i.snap)
		}
	} else {
		r.time = i.time(uint64(p.order.Uint32(b[4:]))<<32 | uint64(p.order.Uint32(b[8:])))
		captured, r.length = p.order.Uint32(b[12:]), clip(p.order.Uint32(b[16:]))
	}
	if uint64(captured) > uint64(len(b)-least) {
		return record{}, errBlock
	}
	r.data = b[least:][:captured:captured]
	return r, nil
}

// time returns the time of a number of the interface's units.
func (i *captureInterface) time(units uint64) time.Time {
	high, low := bits.Mul64(units%i.units, uint64(time.Second))
	nanoseconds, _ := bits.Div64(high, low, i.units)
	return time.Unix(int64(units/i.units)+i.start, int64(nanoseconds))
}
