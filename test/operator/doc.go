// SPDX-License-Identifier: Apache-2.0

// Package operator proves the operator on a real kube-apiserver: its controllers run in the test, everything else is the real thing. Tests
// carry the numbers of the guarantees that they prove.
package operator
