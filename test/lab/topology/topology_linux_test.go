// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"crem.dev/crem/test/lab/bridge"
	"crem.dev/crem/test/lab/wan"
	"crem.dev/crem/test/netns"
)

func newLab(t *testing.T) *Lab {
	t.Helper()
	netns.NeedRoot(t)
	l, err := New(Options{LANMTU: 4200, WANMTU: 4300})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// joined runs a perfect WAN in the lab and returns its totals when it is called.
func joined(t *testing.T, l *Lab) func() [2]bridge.Stats {
	t.Helper()
	var b *bridge.Bridge
	if err := l.WAN.Do(func() (err error) {
		b, err = bridge.Open(bridge.Options{Interfaces: [2]string{WANA, WANB}, Lines: [2]wan.Settings{{}, {}}, Slots: 1024})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	stop, result := make(chan struct{}), make(chan [2]bridge.Stats, 1)
	go func() { result <- b.Run(stop) }()
	return func() [2]bridge.Stats { close(stop); return <-result }
}

// Both hosts reach each other through gateways and WAN, over IPv4 and IPv6, and every frame on the WAN is one that a wire carries.
func TestHostsReachEachOtherWithPlainFrames(t *testing.T) {
	l := newLab(t)
	totals := joined(t, l)
	for _, to := range []netip.Addr{HostB4, HostB6} {
		var server net.Listener
		if err := l.HostB.Do(func() (err error) {
			server, err = net.Listen("tcp", netip.AddrPortFrom(to, 7000).String())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		received := make(chan int64, 1)
		go func() {
			c, err := server.Accept()
			if err != nil {
				received <- -1
				return
			}
			n, _ := io.Copy(io.Discard, c)
			received <- n
		}()
		var c net.Conn
		if err := l.HostA.Do(func() (err error) {
			c, err = net.DialTimeout("tcp", netip.AddrPortFrom(to, 7000).String(), 5*time.Second)
			return err
		}); err != nil {
			t.Fatalf("%v: %v", to, err)
		}
		// Long enough for the stack to hand super-packets to a device that takes them.
		if _, err := c.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		c.Close()
		if n := <-received; n != 1<<20 {
			t.Errorf("%v: %d octets came", to, n)
		}
		server.Close()
	}
	for i, s := range totals() {
		if s.Unfinished > 0 {
			t.Errorf("direction %d: %d frames are not what a wire carries", i, s.Unfinished)
		}
		if s.In.Total() < 100 {
			t.Errorf("direction %d: only %d frames crossed the WAN", i, s.In.Total())
		}
	}
}

// The gateways reach each other by the addresses of their uplinks.
func TestGatewaysReachEachOther(t *testing.T) {
	l := newLab(t)
	defer joined(t, l)()
	for _, pair := range [][2]netip.Addr{{GwA4, GwB4}, {GwA6, GwB6}} {
		var server net.PacketConn
		var client net.Conn
		err := errors.Join(
			l.GwB.Do(func() (err error) {
				server, err = net.ListenPacket("udp", netip.AddrPortFrom(pair[1], 7000).String())
				return err
			}),
			l.GwA.Do(func() (err error) {
				client, err = net.Dial("udp", netip.AddrPortFrom(pair[1], 7000).String())
				return err
			}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if err := server.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 16)
		n, from, err := server.ReadFrom(buf)
		if err != nil || string(buf[:n]) != "hello" || from.(*net.UDPAddr).AddrPort().Addr() != pair[0] {
			t.Errorf("%v: %q from %v, %v", pair, buf[:n], from, err)
		}
		client.Close()
		server.Close()
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func gone(pid int) bool {
	for range 200 {
		if !alive(pid) {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

func TestCloseLeavesNothing(t *testing.T) {
	l := newLab(t)
	p, err := l.Start(l.GwA, "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	path := l.GwA.Path()
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if !gone(p.Pid()) {
		t.Error("a program outlives its lab")
	}
	ended := func() bool { _, err := os.Stat(path); return err != nil }
	for range 200 {
		if ended() {
			break
		}
		time.Sleep(10 * time.Millisecond) // the runtime ends the thread after the goroutine
	}
	if !ended() {
		t.Error("a namespace's thread outlives its lab")
	}
	if err := l.GwA.Do(func() error { return nil }); err == nil {
		t.Error("a closed namespace runs something")
	}
	if _, err := l.Start(l.GwA, "sleep", "1000"); err == nil {
		t.Error("a closed lab starts something")
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), "crem-lab") {
		t.Error("a mount of the lab is visible outside of it")
	}
}

// childMode tells the test binary to make a lab, start a program, say its number, and wait to be killed.
const childMode = "CREM_LAB_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childMode) != "" {
		child()
	}
	os.Exit(m.Run())
}

func child() {
	l, err := New(Options{LANMTU: 1500, WANMTU: 1500})
	if err == nil {
		var p *Process
		if p, err = l.Start(l.GwB, "sleep", "1000"); err == nil {
			fmt.Println(p.Pid())
			select {}
		}
	}
	fmt.Println(err)
	os.Exit(1)
}

// Even when the process that made the lab is killed, its programs end and with them the namespaces.
func TestKilledLabLeavesNothing(t *testing.T) {
	netns.NeedRoot(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childMode+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("the child said %q", line)
	}
	if !alive(pid) {
		t.Fatal("the program does not run")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if !gone(pid) {
		t.Error("a program outlives the killed process of its lab")
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func TestProcessSaysWhatWentWrong(t *testing.T) {
	l := newLab(t)
	p, err := l.Start(l.HostA, "sh", "-c", "echo alas >&2; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Ready("ready", 5*time.Second); err == nil || !strings.Contains(err.Error(), "alas") {
		t.Errorf("error %v", err)
	}
	if _, err := p.Wait(time.Second); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error %v", err)
	}
	slow, err := l.Start(l.HostA, "sh", "-c", "trap '' TERM; echo here; while :; do sleep 0.1; done")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := slow.Stop(300 * time.Millisecond); err == nil || !gone(slow.Pid()) {
		t.Errorf("a program that does not end in time: %v", err)
	}
}
