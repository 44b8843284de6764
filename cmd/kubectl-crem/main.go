// SPDX-License-Identifier: Apache-2.0

// Command kubectl-crem shows how RDMA traffic is protected. On the PATH it is kubectl crem. See docs/cli.md.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"crem.dev/crem/internal/plugin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := plugin.Execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
