// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// Flags adds the flags of a command that runs trials: where the programs are, by default where the command itself is, where the results go, and which
// of its cases to run. what names a case.
func Flags(p *Programs, out, only *string, results, what string) {
	here := "build"
	if self, err := os.Executable(); err == nil {
		here = filepath.Dir(self)
	}
	flag.StringVar(&p.Agent, "agent", filepath.Join(here, "crem-agent"), "`path` of crem-agent")
	flag.StringVar(&p.WAN, "wan", filepath.Join(here, "crem-wan"), "`path` of crem-wan")
	flag.StringVar(&p.RC, "rc", filepath.Join(here, "crem-rc"), "`path` of crem-rc")
	flag.StringVar(out, "out", results, "`file` for the results")
	flag.StringVar(only, "only", "", "run only the "+what+" whose name contains this `text`")
}

// Main runs a command until it is done or interrupted, and ends the process.
func Main(run func(ctx context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}
