// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	agent := flag.String("agent", "build/crem-agent", "program of the agent")
	out := flag.String("out", "build/bench.json", "file to write")
	parts := flag.String("parts", "fec,roce,csf,crf,gateway", "what to measure")
	match := flag.String("gateway", "", "only the comparisons of the gateway whose name contains this")
	rounds := flag.Int("rounds", 5, "turns of the gateway with and without an agent")
	length := flag.Duration("time", 1200*time.Millisecond, "length of one turn")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "bench takes no arguments besides its flags")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	results, err := measure(ctx, strings.Split(*parts, ","), *agent, *match, *rounds, *length)
	if len(results) > 0 {
		writeTable(os.Stdout, results)
		err = errors.Join(err, writeJSON(*out, results))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// measure runs the parts. What was measured before an error is returned with it.
func measure(ctx context.Context, parts []string, agent, match string, rounds int, length time.Duration) (results []Result, err error) {
	want := map[string]bool{}
	for _, p := range parts {
		want[p] = true
	}
	for _, s := range suites() {
		if !want[s.pkg[strings.LastIndexByte(s.pkg, '/')+1:]] {
			continue
		}
		fmt.Fprintln(os.Stderr, "bench:", s.pkg, s.pattern)
		r, err := s.run(ctx)
		results = append(results, r...)
		if err != nil {
			return results, err
		}
	}
	if !want["gateway"] {
		return results, nil
	}
	if os.Geteuid() != 0 {
		return results, errors.New("the gateway needs root: it makes network namespaces; leave it out with -parts fec,roce,csf,crf")
	}
	r, err := measureGateway(ctx, agent, match, rounds, length)
	return append(results, r...), err
}

func measureGateway(ctx context.Context, agent, match string, rounds int, length time.Duration) (results []Result, err error) {
	c, err := takeCores()
	if err != nil {
		return nil, err
	}
	defer preferSession()()
	// The runtime would make do with one thread of Go now: the generator would then let the far end run only when it is preempted.
	runtime.GOMAXPROCS(4)
	g, err := newGateway(agent, c, length)
	if err != nil {
		return nil, err
	}
	defer g.close()
	for _, data := range []int{1024, 4096} {
		for _, x := range protections() {
			if !strings.Contains(x.name, match) {
				continue
			}
			r, err := compare(ctx, os.Stderr, g, x, data, rounds)
			if err != nil {
				return results, err
			}
			results = append(results, r)
		}
	}
	return results, nil
}
