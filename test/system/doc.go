// SPDX-License-Identifier: Apache-2.0

// Package system tests the product as a whole: real agents, started by their command line, in the two gateways of the lab, with real RoCEv2 packets and a
// real kernel between them. Nothing in it replaces a part of the product.
//
// Every test makes its own lab of network namespaces, so it needs root; without root it says so and is skipped. The machine may be busy: what a test
// demands are counts, never rates, and times only where the product promises one.
package system
