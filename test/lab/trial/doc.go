// SPDX-License-Identifier: Apache-2.0

// Package trial runs one transfer in one lab: builds the topology, starts the WAN, the agents if the case is a protected one, and the two endpoints,
// waits for the result, and takes everything down again.
package trial
