// SPDX-License-Identifier: Apache-2.0

// Package vm runs small virtual machines under QEMU's software emulation (TCG) and gives them commands over a virtio-serial port: no network, no
// other program, no hardware virtualisation is needed.
package vm
