// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"crem.dev/crem/test/lab/raw"
)

// Image is what every guest boots: a kernel and an initramfs that hold everything.
type Image struct{ Kernel, Initrd string }

// Config describes one guest.
type Config struct {
	Name   string
	Image  Image
	Dir    string            // for console log and command socket; must exist, is the caller's
	TAP    *os.File          // an open TAP device without packet information and virtio headers: the guest's eth0. Stays the caller's
	MAC    net.HardwareAddr  // of eth0
	Env    map[string]string // handed to the guest's init, without the G_ prefix
	Memory int               // MiB
	CPU    string            // QEMU's name of the processor; empty: qemu64
}

// Guest is one running virtual machine.
type Guest struct {
	name string
	cmd  *exec.Cmd
	port net.Conn
	in   *bufio.Reader
	dead chan struct{} // closed when QEMU has ended
	next int
}

// ErrCommand is wrapped by the error of a command that ended with a status other than 0.
var ErrCommand = errors.New("command failed")

// Start boots a guest and returns when it takes commands. A cancelled ctx gives up; nothing is left running then.
func Start(ctx context.Context, c Config) (*Guest, error) {
	socket := filepath.Join(c.Dir, c.Name+".port")
	console := filepath.Join(c.Dir, c.Name+".console")
	g := &Guest{name: c.Name, dead: make(chan struct{})}
	// A guest stands for a machine of its own: it should not wait for whatever else the host does, nor hinder the programs that stand for its network.
	g.cmd = raw.Software("nice", append([]string{"-n", "-5", "qemu-system-x86_64"}, arguments(c, socket, console)...)...)
	g.cmd.ExtraFiles = []*os.File{c.TAP}
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // a Ctrl-C is ours to handle
	output := &strings.Builder{}
	g.cmd.Stdout, g.cmd.Stderr = output, output
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("guest %s: %w", c.Name, err)
	}
	go func() { _ = g.cmd.Wait(); close(g.dead) }()
	if err := g.connect(ctx, socket); err != nil {
		g.Stop()
		said, _ := os.ReadFile(console)
		return nil, fmt.Errorf("guest %s: %w; QEMU said %q, the console %q", c.Name, err, output.String(), said[max(0, len(said)-500):])
	}
	return g, nil
}

func arguments(c Config, socket, console string) []string {
	var env strings.Builder
	for k, v := range c.Env {
		fmt.Fprintf(&env, " G_%s=%s", k, v)
	}
	return []string{"-name", "crem-rxe-" + c.Name,
		"-M", "q35", "-accel", "tcg,thread=multi", "-cpu", cmp.Or(c.CPU, "qemu64"), "-m", strconv.Itoa(c.Memory), "-smp", "1",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", c.Image.Kernel, "-initrd", c.Image.Initrd,
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check G_NAME=" + c.Name + env.String(),
		"-serial", "file:" + console,
		"-device", "virtio-serial-pci", "-chardev", "socket,id=port,server=on,wait=off,path=" + socket,
		"-device", "virtserialport,chardev=port,name=exec",
		// All offloads off: the TAP carries frames as a wire does.
		"-netdev", "tap,id=n0,fd=3,vhost=off",
		"-device", "virtio-net-pci,netdev=n0,romfile=,mac=" + c.MAC.String() + ",csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off," +
			"guest_ecn=off,guest_ufo=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off",
	}
}

// connect dials the command port, as soon as QEMU offers it and before the guest writes, and waits for the guest's READY.
func (g *Guest) connect(ctx context.Context, socket string) error {
	for {
		port, err := net.Dial("unix", socket)
		if err == nil {
			g.port, g.in = port, bufio.NewReaderSize(port, 1<<16)
			break
		}
		select {
		case <-g.dead:
			return errors.New("QEMU ended at once")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	for {
		line, err := g.line(ctx)
		if err != nil {
			return err
		}
		if line == "READY" {
			return nil
		}
	}
}

// line reads one line; a done ctx interrupts it.
func (g *Guest) line(ctx context.Context) (string, error) {
	stop := context.AfterFunc(ctx, func() { _ = g.port.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() {
			_ = g.port.SetReadDeadline(time.Time{})
		}
	}()
	s, err := g.in.ReadString('\n')
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return strings.TrimRight(s, "\r\n"), err
}

// Run executes a shell command in the guest and returns what it printed. After limit the guest ends it (status 143). One command runs at a time.
func (g *Guest) Run(ctx context.Context, limit time.Duration, command string) (string, error) {
	g.next++
	id, secs := strconv.Itoa(g.next), int(limit.Seconds()+0.5)
	ctx, cancel := context.WithTimeout(ctx, limit+30*time.Second) // for a guest that does not answer at all
	defer cancel()
	request := fmt.Sprintf("%s %d %s\n", id, secs, base64.StdEncoding.EncodeToString([]byte(command)))
	if _, err := g.port.Write([]byte(request)); err != nil {
		return "", fmt.Errorf("guest %s: %w", g.name, err)
	}
	var out strings.Builder
	begun := false
	for {
		line, err := g.line(ctx)
		if err != nil {
			return out.String(), fmt.Errorf("guest %s does not answer: %w", g.name, err)
		}
		status, ended := strings.CutPrefix(line, "END "+id+" ")
		switch {
		case line == "BEGIN "+id:
			begun = true
		case ended && status == "0":
			return out.String(), nil
		case ended:
			return out.String(), fmt.Errorf("guest %s: %w with status %s", g.name, ErrCommand, status)
		case begun:
			out.WriteString(line + "\n")
		}
	}
}

// Stop ends the guest; it may be called more than once.
func (g *Guest) Stop() {
	if g.port != nil {
		_ = g.port.Close()
	}
	_ = g.cmd.Process.Kill()
	<-g.dead
}
