// SPDX-License-Identifier: Apache-2.0

// Package model says how long a message takes over a lossy link, by analysis: the whole distribution, not samples of it, so that a
// p99.9 costs no more than a mean and losses of 1e-9 are no harder than losses of one half. One sender, one message, a link whose rate
// the message fills.
//
// The mechanisms: selective repeat and fixed erasure codes as the completion-time model of SDR-RDMA has them (Khalilov et al., SC'25),
// go-back-N as RoCEv2 does it, and CREM. All are two shapes: a Stream, where units are sent one after the other and each is late on its
// own, so that the last one counts; and Rewinds, where each loss stops everything.
//
// Times are seconds, rates bits per second, sizes octets.
package model
