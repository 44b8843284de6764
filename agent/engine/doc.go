// SPDX-License-Identifier: Apache-2.0

// Package engine runs the packet workers: batches in, CSF and CRF machines, batches out, timers.
//
// One worker per core owns its flows, its pools and its sockets; nothing is shared between workers on the packet path but the
// configuration snapshot, read by one atomic load a batch. Both directions of a pair of hosts meet on one worker.
package engine
