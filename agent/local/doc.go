// SPDX-License-Identifier: Apache-2.0

// Package local serves a node's status to that node: JSON over a Unix socket for kubectl-crem, and health checks and metrics over
// HTTP for the kubelet and Prometheus. It only reads; nothing that it serves changes anything.
package local
