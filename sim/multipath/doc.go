// SPDX-License-Identifier: Apache-2.0

// Package multipath has queue pairs of MRC and veRoCE on the wire: the machines of sim/endpoint, which decide what is sent and when, with octets. They
// move data by RDMA WRITE, veRoCE also by READ, over as many paths as there are source ports, and the end that data comes to compares its memory octet by
// octet when a message completes.
//
// The formats are those of public descriptions, as far as they go; formats.go says where each of them ends. What is not settled is a setting.
package multipath
