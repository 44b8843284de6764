// SPDX-License-Identifier: Apache-2.0

// Command crem-operator renders CREMDomain and CREMProfile objects onto nodes and reports back. See docs/cli.md.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"crem.dev/crem/internal/installation"
	"crem.dev/crem/internal/version"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1 // the operator can not go on
	exitUsage = 2 // flags are wrong: correct them
)

func main() { os.Exit(execute(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// usageError marks what a person must correct on the command line.
type usageError struct{ error }

// execute runs the command line and gives the exit code.
func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	_, _ = fmt.Fprintf(errOut, "crem-operator: %v\n", err)
	if _, usage := err.(usageError); usage { //nolint:errorlint // usage errors are never wrapped
		return exitUsage
	}
	return exitError
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "crem-operator",
		Short: "Renders CREM policy onto the nodes of a cluster and reports back",
		Long: `crem-operator turns CREMDomain and CREMProfile objects into one CREMNode for each node that takes part, tells agents
the addresses of selected pods, and keeps the statuses. It is not on the data path: while it is away nothing changes
for traffic.`,
		Version:       version.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArguments,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w: %s --help lists the flags", err, cmd.CommandPath())}
	})
	root.AddCommand(newRun(), newVersion())
	root.AddCommand(installation.Commands()...)
	return root
}

// noArguments refuses arguments with a sentence.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s takes no argument %q: %s --help shows what it takes", cmd.CommandPath(), args[0], cmd.CommandPath())}
	}
	return nil
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Prints the version", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version.Version)
			return err
		},
	}
}
