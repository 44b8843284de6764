// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"crem.dev/crem/internal/render"
	"crem.dev/crem/internal/version"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2 // flags or files are wrong: correct them
)

// usageError marks what a person must correct on the command line or in files.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// errSaid ends a command that has said everything already.
var errSaid = errors.New("said")

// program is what the commands use of the world.
type program struct {
	in    io.Reader
	now   func() time.Time
	sleep func(ctx context.Context, d time.Duration)
}

// Execute runs kubectl-crem with its arguments and gives the exit code: 0, 1 for a failure, 2 for wrong flags or files.
func Execute(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	return (&program{in: in, now: time.Now, sleep: sleep}).execute(ctx, args, out, errOut)
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func (p *program) execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	root := p.root()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if !errors.Is(err, errSaid) {
		_, _ = fmt.Fprintf(errOut, "kubectl-crem: %v\n", err)
	}
	var usage usageError
	var faults render.Faults
	if errors.As(err, &usage) || errors.As(err, &faults) {
		return exitUsage
	}
	return exitError
}

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-crem",
		Short: "Shows how RDMA traffic is protected, and why it is not",
		Long: `kubectl-crem shows how far a cluster's domains are in force and how the RDMA traffic of a node is protected, explains why it
is not, previews configuration, and reads captures. Put it on the PATH, and kubectl crem runs it.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl crem"},
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
	root.AddCommand(p.status(), p.nodes(), p.flows(), p.top(), p.explain(), p.render(), p.plan(), p.decode(), p.version())
	return root
}

// arguments refuses another number of arguments with a sentence.
func arguments(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usageError{fmt.Errorf("%s needs %s: %s --help shows how", cmd.CommandPath(), what, cmd.CommandPath())}
		case len(args) > most:
			return usageError{fmt.Errorf("%s has an argument too many, %q: %s --help shows how", cmd.CommandPath(), args[most], cmd.CommandPath())}
		}
		return nil
	}
}

// outputFlag adds -o with these values, the first one being the default, and gives the chosen one.
func outputFlag(cmd *cobra.Command, values ...string) func() (string, error) {
	list := strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
	chosen := cmd.Flags().StringP("output", "o", values[0], list)
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return func() (string, error) {
		if !slices.Contains(values, *chosen) {
			return "", usageError{fmt.Errorf("-o %q: write %s", *chosen, list)}
		}
		return *chosen, nil
	}
}

func writeJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func (p *program) version() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Prints the versions of this program and of the node's agent", Args: arguments(0, 0, "")}
	where := p.agentFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		agent := "not reachable"
		if client, err := where.agent(cmd.Context()); err == nil {
			if status, err := client.Status(cmd.Context()); err == nil {
				agent = status.Version
			}
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "kubectl-crem %s\nagent        %s\n", version.Version, agent)
		return err
	}
	return cmd
}
