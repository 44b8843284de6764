// SPDX-License-Identifier: Apache-2.0

// Command crem-rc is a software RDMA endpoint: queue pairs of sim/rc, or of veRoCE and MRC (sim/multipath), on a real interface. Two of them, one in each
// role, transfer messages as two hosts with such NICs would; the one that receives data verifies every octet. It prints its result as JSON.
//
//	crem-rc -role responder -if eth0 -local 10.2.0.2 -remote 10.1.0.2
//	crem-rc -role requester -if eth0 -local 10.1.0.2 -remote 10.2.0.2 -op write -size 1048576 -duration 10s
//
// -qps, -seed, -mtu, -size, -depth, -reads, -transport, -retransmission-bit and those that begin with -veroce must be the same on both command lines: the two
// ends do not talk about them. With -transport veRoCE, -op must be too.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"crem.dev/crem/test/lab/endpoint"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "crem-rc:", err)
		os.Exit(1)
	}
}

func run() error {
	o := endpoint.DefaultOptions()
	o.Register(flag.CommandLine)
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; see -h", flag.Arg(0))
	}
	h, err := endpoint.Open(o)
	if err != nil {
		return err
	}
	defer h.Close()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	fmt.Fprintln(os.Stderr, "crem-rc: ready")
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(h.Run(stop))
}
