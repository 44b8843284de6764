// SPDX-License-Identifier: Apache-2.0

// Package sim answers what a transport, with or without CREM, makes of a link: it runs transfers in a discrete-event world and says how
// long each took and what it cost. It is pure: the same Scenario gives the same Result, octet for octet, and nothing waits.
//
// The parts, from the bottom up:
//
//	sim/world     links: rate, delay, queue and marking, loss, reordering, several paths; what happens next
//	sim/endpoint  transports as machines: go-back-N, selective repeat, fixed erasure codes
//	sim/gateway   the real sender and receiver functions (agent/csf, agent/crf) around a link
//	sim           this package: scenario in, result out
//
// [Run] runs a scenario to its end. [New] and [Simulation.Step] do the same in portions, for callers that show progress or stop early.
// What the simulator keeps, what it leaves out and why its figures can be trusted is in docs/design/simulator.md.
package sim
