// SPDX-License-Identifier: Apache-2.0

// Command crem-adapt shows how redundancy follows the path: transfers between two real agents while the path changes, phase by phase. It makes a lab
// of network namespaces (root), prints a table, and writes the results as JSON.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"crem.dev/crem/test/lab/trial"
)

// options are the flags.
type options struct {
	programs trial.Programs
	self     string
	out      string
	only     string
	flood    flood
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, parse())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "crem-adapt:", err)
		os.Exit(1)
	}
}

func parse() options {
	var o options
	here := "build"
	if self, err := os.Executable(); err == nil {
		here, o.self = filepath.Dir(self), self
	}
	flag.StringVar(&o.programs.Agent, "agent", filepath.Join(here, "crem-agent"), "`path` of crem-agent")
	flag.StringVar(&o.programs.WAN, "wan", filepath.Join(here, "crem-wan"), "`path` of crem-wan")
	flag.StringVar(&o.programs.RC, "rc", filepath.Join(here, "crem-rc"), "`path` of crem-rc")
	flag.StringVar(&o.out, "out", "build/adapt.json", "`file` for the results")
	flag.StringVar(&o.only, "only", "", "run only the scenarios whose name contains this `text`")
	flag.StringVar(&o.flood.to, "flood", "", "be the rival of a scenario: send UDP to this `address`")
	flag.Int64Var(&o.flood.rate, "flood-rate", 0, "its rate, in `bits` per second")
	flag.DurationVar(&o.flood.length, "flood-for", 0, "its `time`")
	flag.Parse()
	return o
}

func run(ctx context.Context, o options) error {
	if o.flood.to != "" {
		return o.flood.run(ctx)
	}
	if err := o.programs.Check(); err != nil {
		return err
	}
	var rows []row
	began := time.Now()
	fmt.Printf(form, "scenario", "phase", "goodput", "lost", "estimate", "m", "overhead", "restored", "requests", "congested", "rival")
	for _, s := range scenarios() {
		if !strings.Contains(s.name, o.only) {
			continue
		}
		w := &watch{ctx: ctx, o: &o, s: &s}
		out, err := trial.Run(ctx, o.programs, s.trial(w))
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		for i := range w.rows {
			w.rows[i].Corrupt, w.rows[i].Disturbed = out.Corrupt(), out.Disturbed()
			w.rows[i].print()
		}
		if d := out.Disturbed(); d != "" {
			fmt.Printf("   (%s)\n", d)
		}
		rows = append(rows, w.rows...)
	}
	if err := trial.WriteJSON(o.out, rows); err != nil {
		return err
	}
	fmt.Printf("\n%.0f seconds. Results: %s\n", time.Since(began).Seconds(), o.out)
	return nil
}
