// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// turnName is an abstract socket: whoever listens there has the machine for its trial. The kernel frees it with the process.
const turnName = "@crem-lab-trial"

// takeTurn waits until no other trial runs on this machine. Two at a time would measure each other: their programs run before ordinary ones.
func takeTurn(ctx context.Context) (release func(), err error) {
	for {
		l, err := net.Listen("unix", turnName)
		if err == nil {
			return func() { _ = l.Close() }, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("take turns with other trials: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
