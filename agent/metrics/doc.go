// SPDX-License-Identifier: Apache-2.0

// Package metrics shows a node's status to Prometheus. It reads the status when it is scraped, so that no packet pays for it, and
// has no series for a peer, a flow or a queue pair: their number is bounded by the code, whatever the traffic is (300 at most, with
// those of the Go runtime; TestSeriesAreBounded). docs/metrics.md lists every metric and is kept true by a test.
package metrics
