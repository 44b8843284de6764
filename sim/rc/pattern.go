// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"encoding/binary"
	"math/bits"
)

// mix is the output function of SplitMix64: every bit of x changes half of the result's.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

const golden = 0x9e3779b97f4a7c15

// Fill writes the octets of message number from offset on. The offset must be a multiple of 8, as every multiple of an MTU is.
func Fill(dst []byte, seed, number uint64, offset int) {
	x := mix(seed+golden) ^ mix(number*golden+1) + uint64(offset/8)*golden
	for ; len(dst) >= 8; dst = dst[8:] {
		binary.LittleEndian.PutUint64(dst, mix(x))
		x += golden
	}
	if len(dst) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], mix(x))
		copy(dst, last[:])
	}
}

// Differing returns how many octets of mem are not those of message number from its start.
func Differing(mem []byte, seed, number uint64) (octets int) {
	x := mix(seed+golden) ^ mix(number*golden+1)
	for ; len(mem) >= 8; mem = mem[8:] {
		if d := binary.LittleEndian.Uint64(mem) ^ mix(x); d != 0 {
			octets += differingOctets(d)
		}
		x += golden
	}
	if len(mem) > 0 {
		var last, want [8]byte
		copy(last[:], mem)
		binary.LittleEndian.PutUint64(want[:], mix(x))
		copy(want[len(mem):], last[len(mem):])
		octets += differingOctets(binary.LittleEndian.Uint64(last[:]) ^ binary.LittleEndian.Uint64(want[:]))
	}
	return octets
}

// differingOctets counts the octets of d that are not zero.
func differingOctets(d uint64) int {
	d |= d >> 4
	d |= d >> 2
	d |= d >> 1
	return bits.OnesCount64(d & 0x0101010101010101)
}
