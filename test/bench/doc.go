// SPDX-License-Identifier: Apache-2.0

// Command bench measures what CREM costs and writes build/bench.json: the coding kernels beside others of one run, the machines of both ends for
// each packet, and one gateway core that protects beside the same core that only forwards. docs/bench.md says how to read it.
//
//	result.go     a figure, the file and the table
//	gotest.go     the benchmarks of the pure packages, run and read
//	compare.go    the gateway with an agent and without one, in turns
//	gateway.go    one gateway core and what surrounds it
//	cores.go      what runs on which core
//	generator.go  frames as fast as the gateway takes them
//	numbered.go   RoCEv2 packets with rising PSNs
//	sink.go       counts and drops what has come through
//	receiver.go   the far end of a protected flow that leaves the gateway
//	sender.go     the far end of a protected flow that arrives at the gateway
package main
