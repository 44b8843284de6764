// SPDX-License-Identifier: Apache-2.0

// Command crem-adapt shows how redundancy follows the path: transfers between two real agents while the path changes, phase by phase. It makes a lab
// of network namespaces (root), prints a table, and writes the results as JSON.
package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"crem.dev/crem/test/lab/trial"
)

// options are the flags.
type options struct {
	programs trial.Programs
	out      string
	only     string
	flood    flood
}

func main() {
	o := parse()
	trial.Main(func(ctx context.Context) error { return run(ctx, o) })
}

func parse() options {
	var o options
	trial.Flags(&o.programs, &o.out, &o.only, "build/adapt.json", "scenarios")
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
