// SPDX-License-Identifier: Apache-2.0

// Package wan models one direction of a long, lossy path under virtual time: a rate limit with a bounded queue, loss, delay, jitter,
// reordering, duplication and CE marking, all drawn from one seeded generator.
//
// The order is that of a real line. A frame first waits in the queue of the slowest hop (or is dropped at its tail), then uses the link for
// its whole length, and only then may it be lost: a lost packet has cost its share of the rate. Delay and reordering come last.
//
// The package does no I/O: frames are the caller's, known here by a token. Package afline joins two Ethernet interfaces by two Lines.
package wan
