// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Bursts of changes (a routing daemon at its start) are told once: when it has been quiet for quietTime, or after
// longest at the latest.
const (
	quietTime = 100 * time.Millisecond
	longest   = time.Second
)

// Watch calls changed after interfaces, addresses, routes or rules changed, until ctx ends; it then returns nil. A call tells
// that something may be different, not what. An error means that the kernel can't be watched (any longer).
func Watch(ctx context.Context, changed func()) error {
	events, err := openEvents()
	if err != nil {
		return fmt.Errorf("uplink: watch: %w", err)
	}
	defer events.Close()
	stop := context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Unix(1, 0)) }) // fails only when it is closed already
	defer stop()
	buf := make([]byte, 1<<16)
	for {
		if err := next(events, buf); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("uplink: watch: %w", err)
		}
		if err := untilQuiet(ctx, events, buf); err != nil {
			return fmt.Errorf("uplink: watch: %w", err)
		}
		if ctx.Err() != nil {
			return nil
		}
		changed()
	}
}

// next waits for an event. A full buffer loses events, which is one, too.
func next(events *os.File, buf []byte) error {
	_, err := events.Read(buf)
	if errors.Is(err, unix.ENOBUFS) {
		return nil
	}
	return err
}

func untilQuiet(ctx context.Context, events *os.File, buf []byte) error {
	last := time.Now().Add(longest)
	for ctx.Err() == nil && time.Now().Before(last) {
		if err := events.SetReadDeadline(time.Now().Add(quietTime)); err != nil {
			return err
		}
		err := next(events, buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := events.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if ctx.Err() != nil { // its end may have been overwritten
		return events.SetReadDeadline(time.Unix(1, 0))
	}
	return nil
}

func openEvents() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	groups := uint32(0)
	for _, g := range []int{
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	} {
		groups |= 1 << (g - 1)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "netlink events"), nil
}
