// SPDX-License-Identifier: Apache-2.0

// Package audit compares what RDMA endpoints send with what is delivered to their peers, packet by packet: how often each PSN was sent, what was
// answered by NAK, and whether every delivered packet is, octet for octet, one that the other endpoint sent.
package audit
