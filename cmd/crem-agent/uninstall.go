// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/uninstall"
	"crem.dev/crem/internal/agentapi"
)

func newUninstall() *cobra.Command {
	var pinDir, socket, stateDir string
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Removes what agents left on this node",
		Long: `Removes the programs, maps, the socket and the saved configuration that agents left on this node, and lists them. Traffic passes before, during
and after. An agent that is running must be stopped first. If other sites still send into tunnels to this node it waits for them, ten seconds
at most; a signal meanwhile ends it, and nothing is removed. Running it again does nothing.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGTERM, unix.SIGINT)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal ends the program at once
			removed, err := uninstall.Run(ctx, pinDir, socket, stateDir)
			for _, what := range removed {
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), "removed", what); err != nil {
					return err
				}
			}
			if err == nil && len(removed) == 0 {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "nothing to remove")
			}
			return err
		},
	}
	cmd.Flags().StringVar(&pinDir, "pin-dir", defaultPinDir, "folder where the agent pinned programs and maps")
	cmd.Flags().StringVar(&socket, "socket", agentapi.DefaultSocket, "Unix socket of the agent")
	cmd.Flags().StringVar(&stateDir, "state-dir", defaultStateDir, "folder where the agent saved its configuration")
	return cmd
}
