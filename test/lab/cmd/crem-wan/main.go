// SPDX-License-Identifier: Apache-2.0

// Command crem-wan joins two Ethernet interfaces like a long, lossy line and prints its counters as JSON when it is stopped.
//
//	crem-wan -a left -b right -delay 10ms -rate 400000000 -queue 4000000 -loss 0.01
//	curl --unix-socket wan.sock -X PATCH -d '{"both":{"loss":0.02}}' http://wan/v1/settings
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"crem.dev/crem/test/lab/bridge"
	"crem.dev/crem/test/lab/wan"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "crem-wan:", err)
		os.Exit(1)
	}
}

// options reads the flags. Both directions have the same settings but for the seed; -settings and the control socket can tell them apart.
func options() (o bridge.Options, control string, err error) {
	var s wan.Settings
	var delay, jitter, reorderDelay time.Duration
	var port uint
	var text string
	flag.StringVar(&o.Interfaces[0], "a", "", "first `interface`")
	flag.StringVar(&o.Interfaces[1], "b", "", "second `interface`")
	flag.IntVar(&o.Slots, "slots", 8192, "frames that can be on the line, in each direction")
	flag.DurationVar(&o.Nap, "nap", 0, "how late frames may leave, so that one wake-up serves several; 0: a fiftieth of the delay, at most 250us")
	flag.StringVar(&control, "control", "", "unix `socket` to serve statistics and settings on")
	flag.StringVar(&text, "settings", "", "`JSON` of both directions, after the other flags: {\"both\":{…},\"a_to_b\":{…},\"b_to_a\":{…}}")
	flag.Int64Var(&s.Rate, "rate", 0, "`bits` per second, 0: unlimited")
	flag.Int64Var(&s.Queue, "queue", 0, "`octets` that wait for the link")
	flag.DurationVar(&delay, "delay", 0, "one-way delay")
	flag.DurationVar(&jitter, "jitter", 0, "variation of the delay, both ways")
	flag.Float64Var(&s.Loss, "loss", 0, "`probability` of independent loss")
	flag.Float64Var(&s.CREMLoss, "crem-loss", 0, "`probability` that a CREM message is lost besides")
	flag.Float64Var(&s.BurstLoss, "burst-loss", 0, "mean loss of the Gilbert-Elliott process")
	flag.Float64Var(&s.BurstLength, "burst-length", 0, "its mean `frames` lost in a row")
	flag.Float64Var(&s.Reorder, "reorder", 0, "`probability` of reordering")
	flag.DurationVar(&reorderDelay, "reorder-delay", time.Millisecond, "extra delay of a reordered frame")
	flag.Float64Var(&s.Duplicate, "duplicate", 0, "`probability` of duplication")
	flag.Float64Var(&s.CEProbability, "ce", 0, "`probability` of a CE mark")
	flag.Int64Var(&s.CEThreshold, "ce-threshold", 0, "`octets` of queue above which all is marked, 0: never")
	flag.Int64Var(&s.EarlyThreshold, "early-threshold", 0, "`octets` of average queue from which on frames are marked ECT(1), and from ce-threshold on CE, 0: none")
	flag.BoolVar(&s.ProtectedOnly, "protected-only", false, "spare all but RoCEv2, veRoCE, MRC and CREM from loss, duplication and reordering")
	flag.UintVar(&port, "crem-port", 0, "UDP port of CREM, for the counters")
	flag.Uint64Var(&s.Seed, "seed", 1, "of the random generators; the other direction has the next")
	flag.Parse()
	if flag.NArg() > 0 || o.Interfaces[0] == "" || o.Interfaces[1] == "" || port > 65535 {
		return o, "", errors.New("usage: crem-wan -a INTERFACE -b INTERFACE [flags]; see -h")
	}
	s.Delay, s.Jitter, s.ReorderDelay, s.CREMPort = wan.Duration(delay), wan.Duration(jitter), wan.Duration(reorderDelay), uint16(port)
	o.Lines = [2]wan.Settings{s, s}
	o.Lines[1].Seed++
	if text != "" {
		err = bridge.Merge(&o.Lines, []byte(text))
	}
	return o, control, err
}

func run() error {
	o, control, err := options()
	if err != nil {
		return err
	}
	b, err := bridge.Open(o)
	if err != nil {
		return err
	}
	stop, stopped, result := make(chan struct{}), make(chan struct{}), make(chan [2]bridge.Stats, 1)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if control != "" {
		l, err := net.Listen("unix", control)
		if err != nil {
			return err
		}
		defer l.Close()
		server := &http.Server{Handler: b.Handler(stopped), ReadHeaderTimeout: time.Second}
		go func() { _ = server.Serve(l) }()
	}
	go func() {
		result <- b.Run(stop)
		close(stopped)
	}()
	fmt.Fprintln(os.Stderr, "crem-wan: ready")
	<-signals
	close(stop)
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(bridge.NewReport(<-result))
}
