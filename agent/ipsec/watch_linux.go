// SPDX-License-Identifier: Apache-2.0

package ipsec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Watch calls changed at every message of the kernel about policies of the calling thread's network namespace, until ctx ends; it then returns nil. A
// call tells that something may be different, not what; the first one comes as soon as nothing is missed any more, for what changed before. An error means that the kernel can't be watched (any longer); then looking from time to time is
// all that is left.
func Watch(ctx context.Context, changed func()) error {
	events, err := openEvents()
	if err != nil {
		if unsupported(err) {
			return ErrUnsupported
		}
		return fmt.Errorf("watch the XFRM policies: %w", err)
	}
	defer func() { _ = events.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Unix(1, 0)) }) // fails only when it is closed already
	defer stop()
	changed()
	buf := make([]byte, 1<<16)
	for {
		_, err := events.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.Is(err, unix.ENOBUFS): // a full buffer loses messages, which is one, too
			return fmt.Errorf("watch the XFRM policies: %w", err)
		}
		changed()
	}
}

// openEvents subscribes to changes of policies, and to their end by age. The second group tells of states, too, which costs a look and no more.
func openEvents() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_XFRM)
	if err != nil {
		return nil, err
	}
	groups := uint32(1<<(nl.XFRMNLGRP_POLICY-1) | 1<<(nl.XFRMNLGRP_EXPIRE-1))
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "XFRM events"), nil
}
