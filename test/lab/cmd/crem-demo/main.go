// SPDX-License-Identifier: Apache-2.0

// Command crem-demo shows what CREM does: the same RDMA transfer without and with it, over a rate-limited link with a long round trip and several kinds
// of loss. It makes a lab of network namespaces (root), shows progress, prints a table, and writes the results as JSON and as a picture.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"crem.dev/crem/test/lab/trial"
)

// options are the flags.
type options struct {
	programs trial.Programs
	out, svg string
	details  string
	link     link
	profile  profile
	only     string
}

func main() {
	o := parse()
	trial.Main(func(ctx context.Context) error { return run(ctx, o) })
}

func parse() options {
	var o options
	trial.Flags(&o.programs, &o.out, &o.only, "build/demo.json", "transfers")
	flag.Lookup("agent").Usage += "; empty: only the unprotected transfers"
	flag.Lookup("only").Usage += ", after the lossless one"
	flag.StringVar(&o.svg, "svg", "", "`file` for the picture; empty: none")
	flag.StringVar(&o.details, "details", "", "`folder` for all that endpoints, emulator and agents said, a file for each transfer; empty: none")
	flag.Int64Var(&o.link.rate, "rate", 400_000_000, "of the link, in `bits` per second")
	flag.DurationVar(&o.link.rtt, "rtt", 20*time.Millisecond, "round-trip `time`")
	flag.Float64Var(&o.link.window, "window", 4, "packets in flight, in bandwidth-delay products")
	flag.IntVar(&o.link.depth, "depth", 16, "messages outstanding")
	flag.DurationVar(&o.link.duration, "duration", 10*time.Second, "`time` of each measurement")
	flag.DurationVar(&o.link.warmup, "warmup", 3*time.Second, "`time` before each measurement")
	flag.Uint64Var(&o.link.seed, "seed", 1, "of the losses")
	o.profile = standard()
	flag.IntVar(&o.profile.K, "k", o.profile.K, "source packets of a block, for all protected transfers")
	flag.IntVar(&o.profile.MaxRepairSymbols, "max-repair", o.profile.MaxRepairSymbols, "repair symbols of a block at most")
	flag.StringVar(&o.profile.Epsilon, "epsilon", o.profile.Epsilon, "`share` of blocks that may stay incomplete at first")
	flag.StringVar(&o.profile.RepairStrategy, "strategy", o.profile.RepairStrategy, "Proactive or OnDemand")
	flag.StringVar(&o.profile.LossModel, "loss-model", o.profile.LossModel, "Independent or Empirical")
	flag.Parse()
	return o
}

func run(ctx context.Context, o options) error {
	if err := o.programs.Check(); err != nil {
		return err
	}
	show := newScreen(os.Stdout, &o.link)
	rows, err := transfers(ctx, &o, show)
	if err != nil {
		return err
	}
	show.table(rows)
	if err := trial.WriteJSON(o.out, rows); err != nil {
		return err
	}
	if o.svg != "" {
		if err := trial.WriteFile(o.svg, plot(rows, &o.link)); err != nil {
			return err
		}
	}
	show.files(o.out, o.svg)
	return nil
}

// repeatWithin is how long after the start a transfer that the machine disturbed is run again.
const repeatWithin = 170 * time.Second

// transfers runs every scenario without and with CREM. One that the machine, not the path, disturbed is run once more, whatever came of it.
func transfers(ctx context.Context, o *options, show *screen) ([]row, error) {
	var rows []row
	lossless := 0.0
	for _, s := range scenarios(o) {
		var out *trial.Outcome
		var r row
		for repeat := range 2 {
			show.start(&s)
			var err error
			if out, err = trial.Run(ctx, o.programs, s.trial(&o.link)); err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			r = newRow(&s, &o.link, out, lossless)
			show.done(&r)
			if r.Disturbed == "" || repeat > 0 || show.elapsed() > repeatWithin {
				break
			}
		}
		if lossless == 0 {
			lossless = r.GoodputBps
			r.setLossless(lossless)
		}
		rows = append(rows, r)
		if o.details != "" {
			if err := trial.WriteJSON(filepath.Join(o.details, strings.NewReplacer(" ", "-", "%", "percent", ",", "").Replace(s.name)+".json"), out); err != nil {
				return nil, err
			}
		}
	}
	return rows, nil
}
