// SPDX-License-Identifier: Apache-2.0

// Package world has the links of a simulation.
//
// Where a rule is:
//
//	link.go      what can be set, and the statistics
//	pipe.go      a running link: lanes, serialisation, delay
//	queue.go     the bounded queue: drop, trim, mark
//	loss.go      which packets are lost: random, bursts, by size
//	arrivals.go  packets on their way, in the order in which they arrive
//
// A Pipe is a pure machine: Send puts a packet in, NextDeadline says when the next one arrives, Receive takes it out. Time is virtual and an
// argument. The time on the wire is reckoned in picoseconds, so that packets of 84 ns at 400 Gbit/s add up to the right second; arrivals are in
// nanoseconds, rounded up. Every random decision comes from the seed.
package world
