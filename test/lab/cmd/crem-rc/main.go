// SPDX-License-Identifier: Apache-2.0

// Command crem-rc is a software RDMA endpoint: queue pairs of sim/rc on a real interface. Two of them, one in each role, transfer messages as
// two hosts with RoCEv2 NICs would; the one that receives data verifies every octet. It prints its result as JSON.
//
//	crem-rc -role responder -if eth0 -local 10.2.0.2 -remote 10.1.0.2
//	crem-rc -role requester -if eth0 -local 10.1.0.2 -remote 10.2.0.2 -op write -size 1048576 -duration 10s
//
// -qps, -seed, -mtu, -size, -depth and -reads must be the same on both command lines: the two ends do not talk about them.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"crem.dev/crem/sim/rc"
	"crem.dev/crem/test/lab/endpoint"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "crem-rc:", err)
		os.Exit(1)
	}
}

var ops = map[string]rc.Op{"write": rc.Write, "send": rc.Send, "read": rc.Read, "mixed": endpoint.Mixed}

func parse() (endpoint.Options, error) {
	o := endpoint.DefaultOptions()
	var role, op string
	var tos uint
	flag.StringVar(&role, "role", "", "requester or responder")
	flag.StringVar(&o.Device, "if", "", "`interface`")
	flag.TextVar(&o.Local, "local", netip.Addr{}, "own `address`")
	flag.TextVar(&o.Remote, "remote", netip.Addr{}, "the other end's `address`")
	flag.StringVar(&o.NextHop, "next-hop", "", "`MAC` address of the next hop; default: from the routing and neighbour tables")
	flag.IntVar(&o.QPs, "qps", o.QPs, "connections")
	flag.StringVar(&op, "op", "write", "write, send, read or mixed (all three in turn)")
	flag.IntVar(&o.Size, "size", o.Size, "`octets` of a message")
	flag.IntVar(&o.Config.MTU, "mtu", o.Config.MTU, "RoCE path MTU")
	flag.IntVar(&o.Config.Depth, "depth", o.Config.Depth, "messages outstanding")
	flag.IntVar(&o.Config.Reads, "reads", o.Config.Reads, "of them, READs")
	flag.IntVar(&o.Config.Window, "window", o.Config.Window, "packets in flight")
	flag.Int64Var(&o.Config.Rate, "rate", 0, "`bits` per second at which data is paced, 0: not")
	flag.DurationVar(&o.Config.Timeout, "timeout", o.Config.Timeout, "local ACK timeout")
	flag.IntVar(&o.Config.Retries, "retries", o.Config.Retries, "retries in a row, below 0: for ever")
	flag.BoolVar(&o.Config.Coalesce, "coalesce", false, "one ACK for all that came in a batch")
	flag.UintVar(&tos, "tos", uint(o.Config.TOS), "TOS or traffic class: DSCP and ECN")
	flag.Uint64Var(&o.Config.Seed, "seed", o.Config.Seed, "of the payload, and the PSNs")
	flag.DurationVar(&o.Warmup, "warmup", 0, "requester: `time` before the measurement")
	flag.DurationVar(&o.Duration, "duration", o.Duration, "requester: `time` of the measurement")
	flag.DurationVar(&o.Drain, "drain", o.Drain, "requester: longest wait afterwards for messages that are outstanding")
	flag.DurationVar(&o.Nap, "nap", o.Nap, "pause between batches while there is traffic")
	flag.Parse()
	known := false
	if o.Op, known = ops[op]; !known {
		return o, fmt.Errorf("operation %q is none of write, send, read, mixed", op)
	}
	if role != "requester" && role != "responder" || flag.NArg() > 0 || tos > 255 {
		return o, errors.New("usage: crem-rc -role requester|responder -if INTERFACE -local ADDRESS -remote ADDRESS [flags]; see -h")
	}
	o.Requester, o.Config.TOS = role == "requester", uint8(tos)
	return o, nil
}

func run() error {
	o, err := parse()
	if err != nil {
		return err
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
