// SPDX-License-Identifier: Apache-2.0

// Package probe finds out what this node's kernel and this process's rights allow the agent to do, and says it in sentences. It
// changes nothing: programs are loaded and dropped again, nothing is attached, sockets are closed unbound.
package probe
