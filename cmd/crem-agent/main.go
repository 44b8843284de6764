// SPDX-License-Identifier: Apache-2.0

// Command crem-agent protects the RDMA traffic of one node. See docs/cli.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"crem.dev/crem/agent/node"
	"crem.dev/crem/internal/version"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1 // the node can not do what was asked
	exitUsage = 2 // flags or files are wrong: correct them
)

func main() { os.Exit(execute(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// usageError marks what a person must correct on the command line.
type usageError struct{ error }

// failed is a command that has said everything already.
var errFailed = errors.New("failed")

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
	if !errors.Is(err, errFailed) {
		_, _ = fmt.Fprintf(errOut, "crem-agent: %v\n", err)
	}
	var usage usageError
	var input *node.InputError
	if errors.As(err, &usage) || errors.As(err, &input) {
		return exitUsage
	}
	return exitError
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "crem-agent",
		Short: "Protects the RDMA traffic of one node over long, lossy links",
		Long: `crem-agent protects the RoCEv2 flows that leave this node by its uplinks with erasure-coded repair, and restores
packets of the flows that arrive by them. When it is absent, stopped or broken, RDMA packets flow as if it had
never been there.`,
		Version:       version.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("there is no command %q: %s --help lists them", args[0], cmd.CommandPath())}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w: %s --help lists the flags", err, cmd.CommandPath())}
	})
	root.AddCommand(newRun(), newProbe(), newUninstall(), newSocket(), newVersion())
	return root
}

// noArguments refuses arguments with a sentence.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s takes no argument %q: %s --help shows its flags", cmd.CommandPath(), args[0], cmd.CommandPath())}
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
