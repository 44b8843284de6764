// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"

	"github.com/spf13/cobra"

	"crem.dev/crem/internal/agentapi"
)

func newSocket() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "socket",
		Short: "Joins standard input and output with the agent's local socket",
		Long: `Joins standard input and output with the local socket of the agent that runs here, until either ends. kubectl crem --node
reaches an agent in its pod this way: the image has no other program.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, err := (&net.Dialer{}).DialContext(cmd.Context(), "unix", path)
			if err != nil {
				return fmt.Errorf("no agent listens on %s: %w: does it run here, and with this --socket?", path, err)
			}
			return join(conn.(*net.UnixConn), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&path, "socket", agentapi.DefaultSocket, "Unix socket of the agent")
	return cmd
}

// join copies both ways until the socket has said everything. The end of in ends only the questions.
func join(conn *net.UnixConn, in io.Reader, out io.Writer) error {
	defer func() { _ = conn.Close() }()
	go func() {
		_, _ = io.Copy(conn, in)
		_ = conn.CloseWrite()
	}()
	if _, err := io.Copy(out, conn); err != nil {
		return fmt.Errorf("read from the agent: %w", err)
	}
	return nil
}
