// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"crem.dev/crem/test/lab/topology"
	"crem.dev/crem/test/lab/trial"
	"crem.dev/crem/test/rxe/audit"
	"crem.dev/crem/test/rxe/vm"
	"crem.dev/crem/test/rxe/watch"
)

const (
	lanMTU = 4200
	// wanMTU: a REPAIR is longer than the longest source packet. At RoCE MTU 4096, IPv6: 40 + 8 + 20 + 4 + 4 + 8 + (4132 + 2) = 4218.
	wanMTU        = 4400
	guestMemory   = 192             // MiB
	gatewayMemory = 448             // with the agent's rings
	bootLimit     = 4 * time.Minute // 10 to 20 s on an idle host
)

// world is everything that runs: two guests, two gateways, the line, and, for the protected cases, two agents.
type world struct {
	opt            *options
	dir            string // sockets, logs, agents' files; removed at the end
	lock           *os.File
	lab            *topology.Lab
	line           *line
	guestA, guestB *vm.Guest
	agents         []*trial.Agent
	mtu            int
}

func newWorld(ctx context.Context, o *options) (w *world, err error) {
	w = &world{opt: o}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.lock, err = exclusive(filepath.Join(o.image, "run.lock")); err != nil {
		return w, err
	}
	if w.dir, err = os.MkdirTemp("", "crem-rxe-"); err != nil {
		return w, err
	}
	if w.lab, err = topology.New(topology.Options{LANMTU: lanMTU, WANMTU: wanMTU, TAP: true}); err != nil {
		return w, err
	}
	if w.line, err = openLine(w.lab.WAN); err != nil {
		return w, err
	}
	return w, w.boot(ctx, o.gateways)
}

// exclusive makes sure that only one run uses the namespaces.
func exclusive(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("another run holds %s", name)
	}
	return f, nil
}

// boot starts both guests. Those that are gateways too are left to set up their network.
func (w *world) boot(ctx context.Context, gateways bool) error {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	image := vm.Image{Kernel: filepath.Join(w.opt.image, "vmlinuz"), Initrd: filepath.Join(w.opt.image, "initrd.gz")}
	if gateways {
		var err error
		if image.Initrd, err = w.withAgent(image.Initrd); err != nil {
			return err
		}
	}
	var group sync.WaitGroup
	var errs [2]error
	for i, g := range []struct {
		name  string
		tap   *os.File
		mac   net.HardwareAddr
		guest **vm.Guest
	}{{"A", w.lab.TAPA, topology.MACA, &w.guestA}, {"B", w.lab.TAPB, topology.MACB, &w.guestB}} {
		config := vm.Config{Name: g.name, Image: image, Dir: w.dir, TAP: g.tap, MAC: g.mac, Memory: guestMemory}
		if gateways {
			config.Memory, config.CPU = gatewayMemory, "max" // with instructions for AES
		} else {
			config.Env = map[string]string{
				"IP4": fmt.Sprintf("10.%d.0.2/24", i+1), "GW4": fmt.Sprintf("10.%d.0.1", i+1),
				"IP6": fmt.Sprintf("fd00:%d::2/64", i+1), "GW6": fmt.Sprintf("fd00:%d::1", i+1), "MTU": strconv.Itoa(lanMTU),
			}
		}
		group.Go(func() { *g.guest, errs[i] = vm.Start(ctx, config) })
	}
	group.Wait()
	w.mtu = lanMTU
	return errors.Join(errs[:]...)
}

// close ends everything, in whatever state it is.
func (w *world) close() {
	for _, a := range w.agents {
		_ = a.Stop()
	}
	for _, g := range []*vm.Guest{w.guestA, w.guestB} {
		if g != nil {
			g.Stop()
		}
	}
	if w.line != nil {
		w.line.close()
	}
	if w.lab != nil {
		w.lab.Close()
	}
	if w.dir != "" {
		_ = os.RemoveAll(w.dir)
	}
	if w.lock != nil {
		_ = w.lock.Close()
	}
}

func (w *world) log(who, what string) {
	if w.opt.verbose {
		fmt.Printf("%s> %s\n", who, strings.ReplaceAll(strings.TrimSpace(what), "\n", "\n"+who+"> "))
	}
}

// watchers audit both guests' interfaces.
type watchers struct {
	mu    sync.Mutex
	audit *audit.Audit
	open  []*watch.Watcher
	ended bool // what is delivered from now on is not looked at: the watcher that saw it sent may have ended
}

func (w *world) watch(mtu int) (*watchers, error) {
	ws := &watchers{audit: audit.New(mtu)}
	var err error
	ws.open, err = w.onCables(ws.frame)
	return ws, err
}

// onCables opens a watcher on the cable of each site, both or none.
func (w *world) onCables(see func(frame []byte, out bool)) (open []*watch.Watcher, err error) {
	for _, n := range []*topology.Namespace{w.lab.GwA, w.lab.GwB} {
		err = n.Do(func() error {
			one, err := watch.Open(topology.Access, see)
			if err == nil {
				open = append(open, one)
			}
			return err
		})
		if err != nil {
			for _, one := range open {
				_, _ = one.Close()
			}
			return nil, err
		}
	}
	return open, nil
}

func (ws *watchers) frame(f []byte, out bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	switch {
	case !out:
		ws.audit.Sent(f)
	case !ws.ended:
		ws.audit.Delivered(f)
	}
}

func (ws *watchers) close() (missed uint64, err error) {
	for _, w := range ws.open {
		w.Settle(4 * rtt)
	}
	ws.mu.Lock()
	ws.ended = true
	ws.mu.Unlock()
	for _, w := range ws.open {
		n, cerr := w.Close()
		missed += n
		err = errors.Join(err, cerr)
	}
	return missed, err
}

// run executes one case. An error is the test's own; a failed transfer is in the result.
func (w *world) run(ctx context.Context, c testCase) (result, error) {
	r := result{Test: c.Test, IP: c.IP, MTU: c.MTU, Loss: c.Loss, Protected: c.Protected, RTT: float64(rtt.Milliseconds()), Needed: uint64(c.packets())}
	if w.mtu != c.guestMTU() {
		if err := w.setMTU(ctx, c.guestMTU()); err != nil {
			return r, err
		}
		w.mtu = c.guestMTU()
	}
	if err := w.line.set(c.Loss, false); err != nil {
		return r, err
	}
	before, err := w.snapshot(ctx)
	if err != nil {
		return r, err
	}
	ws, err := w.watch(c.MTU)
	if err != nil {
		return r, err
	}
	took, failed, err := w.transfer(ctx, c)
	missed, cerr := ws.close()
	if err = errors.Join(err, cerr); err != nil {
		return r, err
	}
	after, err := w.snapshot(ctx)
	if err != nil {
		return r, err
	}
	w.logFlows(ctx)
	r.Seconds, r.Missed, r.Audit = took.Seconds(), missed, ws.audit.Report()
	r.fill(before, after)
	w.score(&r, c, failed)
	return r, nil
}

// address of guest A or B.
func address(ip int, b bool) netip.Addr {
	switch {
	case ip == 4 && b:
		return topology.HostB4
	case ip == 4:
		return topology.HostA4
	case b:
		return topology.HostB6
	}
	return topology.HostA6
}

// score fills in what the case makes of the counts.
func (w *world) score(r *result, c testCase, failed string) {
	sender := address(c.IP, c.responder()).String()
	r.Sent = r.Audit.Data[sender]
	if c.Test == "rping" { // small messages of its own besides the data: what was needed is what was sent a first time
		r.Needed = r.Audit.Distinct[sender]
	}
	if r.Needed > 0 {
		r.SentOverNeeded = float64(r.Sent) / float64(r.Needed)
	}
	r.Retransmitted, r.Naks, r.Gaps, r.Corrupt = r.Audit.Retransmitted, r.Audit.Naks, r.Audit.Gaps, r.Audit.Corrupt()
	if failed != "" {
		r.Errors, r.Why = 1, failed
		if strings.Contains(failed, "data mismatch") {
			r.Corrupt++
		}
	}
}
