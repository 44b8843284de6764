// SPDX-License-Identifier: Apache-2.0

// Package gateway puts the real sender and receiver functions of CREM around a simulated link.
//
// A Sender stands where packets leave: it makes a real RoCEv2 frame of each, shows it to a csf.Flow, and gives out what that sends. A Receiver
// stands where they arrive: it makes the same frame again, asks a model of the kernel's hold program, shows it to a crf.Flow, and gives out
// what the receiver gets. Between them a packet is a few numbers. No decision is made here.
//
//	packet.go    what travels on a link
//	frame.go     frames of packets
//	scale.go     thin frames: packets with less data than they stand for, and what that means for the machines' parameters
//	sender.go    the CSF
//	receiver.go  the CRF
//	hold.go      the kernel's hold program
package gateway
