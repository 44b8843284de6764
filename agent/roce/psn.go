// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"fmt"
	"math"
	"time"
)

// Never is the "no deadline" of every state machine: the largest Duration.
const Never = time.Duration(math.MaxInt64)

const (
	psnBits = 24
	psnMask = 1<<psnBits - 1
)

// PSN is a packet sequence number: 24 bits that wrap. Only the low 24 bits are ever set; every method keeps it so.
type PSN uint32

// Add returns the PSN n positions after p (before it for a negative n), modulo 2^24.
func (p PSN) Add(n int) PSN { return PSN(uint32(int(p)+n) & psnMask) }

// Sub returns the signed distance from q to p, the shorter way round: -2^23 to 2^23-1. p.Sub(q) > 0 says that p
// is newer than q.
func (p PSN) Sub(q PSN) int { return int(int32((p-q)<<(32-psnBits)) >> (32 - psnBits)) }

// Before says that p is older than q. PSNs that are exactly 2^23 apart are each before the other: half the number
// space away nothing is newer.
func (p PSN) Before(q PSN) bool { return p.Sub(q) < 0 }

// After says that p is newer than q.
func (p PSN) After(q PSN) bool { return p.Sub(q) > 0 }

// String returns the PSN as six hexadecimal digits after "0x".
func (p PSN) String() string { return fmt.Sprintf("0x%06x", uint32(p)) }

// QPN is a queue pair number: 24 bits. QP 0 and 1 are the management queue pairs, whose packets CREM never protects.
type QPN uint32

// Management says that the queue pair is the subnet or the general services interface (QP 0 or 1).
func (q QPN) Management() bool { return q <= 1 }

// String returns the QPN as six hexadecimal digits after "0x".
func (q QPN) String() string { return fmt.Sprintf("0x%06x", uint32(q)) }
