// SPDX-License-Identifier: Apache-2.0

// Package bpf has the kernel programs of an uplink and their loader.
//
// A link holds a program only while something holds the link: a pin or a process. With Config.PinDir the links and maps
// are pinned, so that the programs stay while no agent runs and are then harmless: without a heartbeat everything passes.
package bpf
