// SPDX-License-Identifier: Apache-2.0

// Command crem-rxe runs real Soft-RoCE endpoints and perftest in two virtual machines over an emulated long line, without and with CREM, and writes
// one object per run to a JSON file.
//
// Exit status: 0 every figure was met, 1 one was missed (each is named), 2 the test itself could not go on.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

type options struct {
	image, agent, out string
	only              *regexp.Regexp
	budget            time.Duration
	verbose           bool
	gateways          bool // the guests are gateways too, whose kernels encrypt
}

func main() {
	var o options
	var only, selection string
	flag.StringVar(&o.image, "image", "", "folder with vmlinuz and initrd.gz")
	flag.StringVar(&o.agent, "agent", "build/crem-agent", "the agent")
	flag.StringVar(&o.out, "out", "", "result file (default build/e2e-rxe.json, with ipsec build/e2e-ipsec.json)")
	flag.StringVar(&selection, "cases", "full", "full, short or ipsec")
	flag.StringVar(&only, "only", "", "run only the cases whose name matches this regular expression")
	flag.DurationVar(&o.budget, "budget", time.Hour, "cases that would start later than this are left out, and the run fails")
	flag.BoolVar(&o.verbose, "v", false, "print what the guests print")
	flag.Parse()
	o.gateways = selection == "ipsec"
	var cases []testCase
	var err error
	if !o.gateways {
		cases, err = selectCases(selection)
	}
	if o.out == "" {
		o.out = map[bool]string{false: "build/e2e-rxe.json", true: "build/e2e-ipsec.json"}[o.gateways]
	}
	if err == nil {
		o.only, err = regexp.Compile(only)
	}
	if err == nil && o.image == "" {
		err = fmt.Errorf("-image is needed")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "crem-rxe:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.gateways {
		os.Exit(runIPsec(ctx, &o))
	}
	results, err := runAll(ctx, &o, cases)
	if len(results) > 0 {
		if werr := write(o.out, results); err == nil {
			err = werr
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "crem-rxe:", err)
		os.Exit(2)
	}
	if missed := judge(results); len(missed) > 0 {
		for _, m := range missed {
			fmt.Println("MISSED:", m)
		}
		os.Exit(1)
	}
}

// runAll runs the unprotected cases first, then starts the agents once and runs the others.
func runAll(ctx context.Context, o *options, cases []testCase) (results []result, err error) {
	start := time.Now()
	w, err := newWorld(ctx, o)
	if err != nil {
		return nil, err
	}
	defer w.close()
	fmt.Printf("guests booted after %.0f s\n%s\n", time.Since(start).Seconds(), header)
	for _, protected := range []bool{false, true} {
		for _, c := range cases {
			if c.Protected != protected || !o.only.MatchString(c.name()) {
				continue
			}
			if time.Since(start) > o.budget {
				return results, fmt.Errorf("%s and what follows were left out: %v are used up", c.name(), o.budget)
			}
			if protected {
				if err := w.startAgents(ctx); err != nil {
					return results, err
				}
			}
			r, err := w.run(ctx, c)
			if err != nil {
				return results, fmt.Errorf("%s: %w", c.name(), err)
			}
			fmt.Println(r.row())
			results = append(results, r)
		}
	}
	fmt.Printf("%d runs in %.0f s\n", len(results), time.Since(start).Seconds())
	return results, nil
}

func write(name string, results any) error {
	b, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o644)
}
