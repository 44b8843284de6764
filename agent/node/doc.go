// SPDX-License-Identifier: Apache-2.0

// Package node turns what a node is told to do into what its packet workers obey, and keeps the two together: it reads and watches
// the YAML of domains and profiles, has internal/render make the node's share of it, converts that to an engine.Config, and
// applies it. A configuration that is wrong changes nothing: the last good one stays in force, the log says so in one line and the
// status is stale until a good one comes.
//
// It is the only package that knows both the API types and the engine.
package node
