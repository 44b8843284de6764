// SPDX-License-Identifier: Apache-2.0

// Package fec is the coding of CREM: source symbols, the three FEC schemes,
// the solver, the block digest and the choice of m (draft section 4, and
// section 5.3 for m).
//
// What it is: pure computation. The caller owns time, sockets and policy. The
// package decides nothing about which packets belong to a block, which are
// late, or whether a restored packet may be delivered; it codes what it is
// given, and says so when the equations do not hold.
//
// # Symbols
//
// The source symbol of a UDP payload P is S = uint16(len P) || P || zeros, T
// octets long (section 4.1). Kernels work on whole columns of 64 octets, so
// every symbol that is written lies in memory of [Stride](T) octets. What
// stands after the first T octets never influences them: the code treats every
// octet position on its own.
//
// # Buffers
//
// A [Cell] holds one symbol and the headers that came before it; a [Pool] hands
// cells out within a bound in octets. Cells and message buffers that were given
// back stay intact until [Pool.Reclaim], so that actions already handed to the
// engine stay valid (see docs/design/seams.md). A build with -race overwrites
// them in Reclaim, so that a use after it shows at once.
//
// # Concurrency
//
// Nothing here is safe for concurrent use, and nothing is shared between
// workers except constant tables: one Pool, one [Decoder] and as many [Digest]
// values as needed belong to one worker.
//
// # Kernels
//
// Sums of products over GF(2^8) are computed by generated AVX-512/GFNI assembly
// where the processor has it, and by klauspost/reedsolomon elsewhere
// (internal/gf). Both give the same octets. Nothing allocates in steady state.
package fec
