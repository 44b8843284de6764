// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"time"

	"golang.org/x/sys/unix"
)

func monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // cannot fail for a clock that every kernel has
	}
	return time.Duration(ts.Nano())
}
