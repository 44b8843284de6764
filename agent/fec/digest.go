// SPDX-License-Identifier: Apache-2.0

package fec

import "github.com/zeebo/xxh3"

// Digest computes the block digest (decision "Block digest"): XXH3-64 with the
// Sender Nonce as seed over the source symbols of all present positions, in
// order of position, T octets each. Unlike a CRC it is not linear over GF(2),
// so it tells apart blocks that differ by the inconsistent copies which the
// invariant CRC cannot see. It is no protection against a forger.
//
// The zero Digest is ready for use after Reset. A Digest must not be copied.
type Digest struct{ h xxh3.Hasher }

// Reset starts a digest with the given Sender Nonce as seed. It allocates once
// in the life of a Digest.
func (d *Digest) Reset(nonce uint64) { d.h.ResetSeed(nonce) }

// Add appends the symbol of the next present position, T octets.
func (d *Digest) Add(symbol []byte) { _, _ = d.h.Write(symbol) }

// Sum returns the digest of the symbols added since Reset.
func (d *Digest) Sum() uint64 { return d.h.Sum64() }
