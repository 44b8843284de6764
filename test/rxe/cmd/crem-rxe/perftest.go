// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"crem.dev/crem/test/rxe/vm"
)

const (
	perftestPort = 18515
	rpingPort    = 7174
	// qpTimeout is perftest's -u: 4.096 us * 2^18 is 1 s. The default 14 (67 ms) is shorter than the pauses of an emulated machine on a busy host, and a
	// retransmission for that would be counted as if the line had caused it.
	qpTimeout = 18
	// plainTimeout, 268 ms, for the unprotected cases with loss: go-back-N waits for a timeout whenever a NAK or the packet that it asks for is lost, and a
	// second each would make the full matrix an hour longer.
	plainTimeout = 16
)

// commands of both ends. GID 1 is the guest's IPv4 address, GID 2 its IPv6 address; perftest exchanges its parameters over TCP to an IPv4 address.
func (c testCase) commands() (server, client string, port int) {
	if c.Test == "rping" {
		common := fmt.Sprintf("-a %s -p %d -V -S %d -C %d", address(c.IP, true), rpingPort, c.Size, c.Messages)
		return "rping -s " + common, "rping -c " + common, 0
	}
	gid, timeout := 1, qpTimeout
	if c.IP == 6 {
		gid = 2
	}
	if !c.Protected && c.Loss > 0 {
		timeout = plainTimeout
	}
	common := fmt.Sprintf("%s -d rxe0 -x %d -F -m %d -u %d -s %d -n %d -p %d", c.Test, gid, c.MTU, timeout, c.Size, c.Messages, perftestPort)
	if c.Calm {
		common += " -e -t 2"
	}
	return common, common + " " + address(4, true).String(), perftestPort
}

// transfer runs server and client and returns how long the client took. failed is one sentence, empty when both ends succeeded.
func (w *world) transfer(ctx context.Context, c testCase) (took time.Duration, failed string, err error) {
	server, client, port := c.commands()
	limit := int((caseLimit + 20*time.Second).Seconds())
	start := fmt.Sprintf("rm -f /tmp/status; (timeout %d %s >/tmp/log 2>&1; echo $? >/tmp/status) >/dev/null 2>&1 &", limit, server)
	if _, err := w.guestB.Run(ctx, 10*time.Second, start); err != nil {
		return 0, "", err
	}
	if err := w.waitForServer(ctx, port); err != nil {
		return 0, "", err
	}
	begin := time.Now()
	out, err := w.guestA.Run(ctx, caseLimit, client)
	took = time.Since(begin)
	w.log("A", out)
	if err != nil && !errors.Is(err, vm.ErrCommand) {
		return took, "", err
	}
	if err != nil {
		failed = fmt.Sprintf("client: %v: %s", err, lastLine(out))
	}
	// The server ends by itself after its client; after a failed one it is told to.
	end := "for i in 1 2 3 4 5 6 7 8 9 10; do [ -s /tmp/status ] && break; sleep 0.2; done; [ -s /tmp/status ] || killall " + c.Test +
		" 2>/dev/null; sleep 0.3; cat /tmp/log; echo; cat /tmp/status"
	out, err = w.guestB.Run(ctx, 20*time.Second, end)
	w.log("B", out)
	if err != nil && !errors.Is(err, vm.ErrCommand) {
		return took, "", err
	}
	if status := lastLine(out); status != "0" && failed == "" && c.Test != "rping" { // rping's server ends with the status of a broken connection
		failed = fmt.Sprintf("server: status %s", status)
	}
	return took, failed, nil
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

func (w *world) waitForServer(ctx context.Context, port int) error {
	command := "sleep 1" // a server of the RDMA connection manager listens on no socket
	if port != 0 {
		command = fmt.Sprintf("for i in $(seq 50); do grep -q ':%04X 0*:0000 0A' /proc/net/tcp /proc/net/tcp6 && exit 0; sleep 0.1; done; cat /tmp/log; exit 1", port)
	}
	if out, err := w.guestB.Run(ctx, 15*time.Second, command); err != nil {
		return fmt.Errorf("server does not listen: %w: %s", err, out)
	}
	return nil
}

// setMTU gives both guests the IP MTU from which Soft-RoCE takes its RoCE MTU.
func (w *world) setMTU(ctx context.Context, mtu int) error {
	for _, g := range []*vm.Guest{w.guestA, w.guestB} {
		if out, err := g.Run(ctx, 10*time.Second, fmt.Sprintf("ip link set eth0 mtu %d", mtu)); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	return nil
}

// hardwareCounters reads Soft-RoCE's own counters.
func hardwareCounters(ctx context.Context, g *vm.Guest) (map[string]int, error) {
	out, err := g.Run(ctx, 10*time.Second, "cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep . *")
	if err != nil {
		return nil, err
	}
	m := map[string]int{}
	for _, line := range strings.Split(out, "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			if n, err := strconv.Atoi(value); err == nil {
				m[name] = n
			}
		}
	}
	return m, nil
}

func changed(before, after map[string]int) map[string]int {
	d := map[string]int{}
	for name, n := range after {
		if n != before[name] {
			d[name] = n - before[name]
		}
	}
	return d
}
