// SPDX-License-Identifier: Apache-2.0

// Package reporter is the Path Reporter (Section 8.2): what a node on the path of protected flows knows of their loss and delay, and
// the PATH_REPORTs that it makes of that.
//
// Where to find a rule:
//
//	reporter.go  the Reporter: what is known of a flow, reports that are due
//	drops.go     packets that the node itself dropped, one by one
//	port.go      drop counters of an interface or queue, shared out among its flows
//	merge.go     Hop Entries of reports that come from further down the path
//	report.go    a report in the making: entries, dropped PSNs, the path MTU
//	pace.go      aggregation, limits per flow and per port
//	marking.go   Alternate Marking: periods, colours (RFC 9341)
//	reading.go   Alternate Marking: what a measurement point counted
//	compare.go   Alternate Marking: loss and change of delay between two measurement points
//	stats.go     reasons and counters
//
// The package is pure: time is an argument, nothing allocates per packet, and every table has a bound. Nothing here is safe for concurrent
// use: a Reporter is of one port and one worker.
package reporter
