// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/test/netns"
)

// This binary is also the agent that gets killed.
const agentEnv = "CREM_TEST_BPF_AGENT" // pin folder, then the interface index

func TestMain(m *testing.M) {
	if pinDir := os.Getenv(agentEnv); pinDir != "" {
		ifindex, err := strconv.Atoi(os.Getenv(agentEnv + "_IFINDEX"))
		if err == nil {
			err = agent(pinDir, ifindex)
		}
		fmt.Println("agent:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// agent holds one flow and never gives anything back.
func agent(pinDir string, ifindex int) error {
	o, err := bpf.Load(config(pinDir))
	if err != nil {
		return err
	}
	a, err := o.Attach(ifindex, false)
	if err != nil {
		return err
	}
	if _, err := o.RegisterFlow(keyOf(source(0)), 0, 1024, packet.InOrder); err != nil {
		return err
	}
	ring := o.Ring(0)
	o.Beat(0, packet.Now())
	fmt.Println("ready", a.Ingress, a.Egress, o.Reused())
	var frames [16]packet.Frame
	for {
		o.Beat(0, packet.Now())
		ring.Next(frames[:])
		ring.Release()
		time.Sleep(200 * time.Microsecond)
	}
}

// StaleAfter is generous for a loaded machine.
func config(pinDir string) bpf.Config {
	return bpf.Config{Workers: 1, SlotOctets: mtu + 14, RingSlots: 256, MaxFlows: 16, StaleAfter: 100 * time.Millisecond, PinDir: pinDir}
}

// process is a running agent.
type process struct {
	cmd   *exec.Cmd
	ready string // what it said when it was ready
}

func (w *world) startAgent(pinDir string) *process {
	w.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), agentEnv+"="+pinDir, fmt.Sprintf("%s_IFINDEX=%d", agentEnv, w.up))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.node.Start(cmd); err != nil {
		w.t.Fatal(err)
	}
	p := &process{cmd: cmd}
	w.t.Cleanup(p.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line[:5] != "ready" {
		w.t.Fatalf("agent said %q, %v", line, err)
	}
	p.ready = line[6 : len(line)-1]
	return p
}

func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// programs are the names of the programs on a hook, and the numbers of their links.
func (w *world) programs(at ebpf.AttachType) (names []string, links []link.ID) {
	w.t.Helper()
	w.node.Do(func() {
		on, err := link.QueryPrograms(link.QueryOptions{Target: w.up, Attach: at})
		if err != nil {
			w.t.Fatal(err)
		}
		for _, p := range on.Programs {
			program, err := ebpf.NewProgramFromID(p.ID)
			if err != nil {
				w.t.Fatal(err)
			}
			defer program.Close()
			info, err := program.Info()
			if err != nil {
				w.t.Fatal(err)
			}
			id, _ := p.LinkID()
			names, links = append(names, info.Name), append(links, id)
		}
	})
	return names, links
}

// wantOne wants exactly one program of ours on each hook, and returns their links.
func (w *world) wantOne() (links [2]link.ID) {
	w.t.Helper()
	for i, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		names, ids := w.programs(at)
		if len(names) != 1 || names[0] != []string{"crem_ingress", "crem_egress"}[i] {
			w.t.Fatalf("programs on hook %v: %v", at, names)
		}
		links[i] = ids[0]
	}
	return links
}

// G01, G03: an agent is killed again and again while packets run. None is lost in the in-order state, the next agent takes
// the same links over in place, and there is never a second program.
func TestG01_KilledAgentLosesNothing(t *testing.T) {
	w := newWorld(t)
	pinDir := filepath.Join(netns.MountBPF(t), "crem")
	host := w.listen()
	psn := uint32(0)
	run := func(n int) {
		t.Helper()
		for range n {
			w.send(source(psn).Frame())
			got, ok := host.next(soon)
			if !ok || got != psn {
				t.Fatalf("PSN %d, %v; want %d", got, ok, psn)
			}
			psn++
		}
	}
	var links [2]link.ID
	for i := range 4 {
		p := w.startAgent(pinDir)
		want := "created created false"
		if i > 0 {
			want = "updated updated true"
		}
		if p.ready != want {
			t.Fatalf("agent %d: %s, want %s", i, p.ready, want)
		}
		run(50)
		p.kill()
		run(50)
		now := w.wantOne()
		if i > 0 && now != links {
			t.Fatalf("links %v, before %v", now, links)
		}
		links = now
	}
}

// An agent is killed while it holds packets: those are lost, and nothing after its heartbeat has run out.
func TestKilledWhileHolding(t *testing.T) {
	w := newWorld(t)
	pinDir := filepath.Join(netns.MountBPF(t), "crem")
	host := w.listen()
	p := w.startAgent(pinDir)
	w.send(source(1).Frame())
	host.expect(1)
	w.send(source(5).Frame()) // after a gap: held
	host.expect()
	p.kill()
	time.Sleep(config("").StaleAfter)
	for psn := uint32(6); psn < 30; psn++ {
		w.send(source(psn).Frame())
	}
	host.expect(6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29)

	// The next agent begins without the flows of the dead one.
	o, err := bpf.Load(config(pinDir))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if !o.Reused() {
		t.Error("maps of the dead agent were not taken over")
	}
	if got := o.Attached(); len(got) != 1 || got[0] != w.up {
		t.Errorf("attached on %v", got)
	}
	o.Beat(0, packet.Now()+time.Hour)
	w.send(source(40).Frame())
	host.expect(40)
	if _, ok := o.Seen(keyOf(source(0))); !ok {
		t.Error("the flow is still registered")
	}
	if index, err := o.RegisterFlow(keyOf(source(0)), 0, 1024, packet.InOrder); err != nil || !packet.Word(o.Word(index).Load()).Learn() {
		t.Errorf("register: %v", err)
	}
}

// A hung agent: packets pass while it is stopped, also those after a gap.
func TestStoppedAgent(t *testing.T) {
	w := newWorld(t)
	host := w.listen()
	p := w.startAgent(filepath.Join(netns.MountBPF(t), "crem"))
	w.send(source(1).Frame())
	host.expect(1)
	if err := p.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * config("").StaleAfter)
	for _, psn := range []uint32{2, 3, 9, 10} {
		w.send(source(psn).Frame())
	}
	host.expect(2, 3, 9, 10)
	if err := p.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	time.Sleep(config("").StaleAfter)
	w.send(source(11).Frame())
	host.expect(11)
	w.send(source(20).Frame()) // it works again: held
	host.expect()
}

// Section 11, rule 3: the boundary stands while no agent runs.
func TestSection11_BoundaryWithoutAgent(t *testing.T) {
	w := newWorld(t)
	pinDir := filepath.Join(netns.MountBPF(t), "crem")
	o, err := bpf.Load(config(pinDir))
	if err != nil {
		t.Fatal(err)
	}
	if err := o.SetDomains([]bpf.Domain{{ID: 1, Ports: []uint16{4791 + 1}, Members: prefixes("10.1.0.0/24"), Served: prefixes("10.2.0.0/24")}}, nil); err != nil {
		t.Fatal(err)
	}
	w.attach(o)
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	w.wantOne()
	inside, outside := source(0), source(0)
	outside.Src = addrs("203.0.113.9")[0]
	o, err = bpf.Load(config(pinDir))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	before, err := o.Stats()
	if err != nil {
		t.Fatal(err)
	}
	inside.DstPort, outside.DstPort = 4792, 4792
	w.send(outside.Headers.Frame(repair(2, 0, 64)))
	w.send(inside.Headers.Frame(repair(2, 0, 64)))
	var after bpf.Stats
	for end := time.Now().Add(soon); time.Now().Before(end) && after[bpf.PathPassed] == 0; time.Sleep(time.Millisecond) {
		if after, err = o.Stats(); err != nil {
			t.Fatal(err)
		}
	}
	if after[bpf.BoundarySource]-before[bpf.BoundarySource] != 1 || after[bpf.PathPassed]-before[bpf.PathPassed] != 1 {
		t.Errorf("%v", after)
	}
}

// A layout that differs gets new maps; the old ones are no longer pinned, the links are the same.
func TestOtherLayout(t *testing.T) {
	w := newWorld(t)
	pinDir := filepath.Join(netns.MountBPF(t), "crem")
	first, err := bpf.Load(config(pinDir))
	if err != nil {
		t.Fatal(err)
	}
	w.attach(first)
	links := w.wantOne()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	c := config(pinDir)
	c.RingSlots *= 2
	second, err := bpf.Load(c)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if second.Reused() {
		t.Error("maps of another layout taken over")
	}
	if a := w.attach(second); a.Ingress != bpf.Updated || a.Egress != bpf.Updated || w.wantOne() != links {
		t.Errorf("%+v", a)
	}
	if dirs, _ := filepath.Glob(filepath.Join(pinDir, "maps-*")); len(dirs) != 1 {
		t.Errorf("pinned: %v", dirs)
	}
}

// Two agents never share a pin folder.
func TestSecondAgentRefused(t *testing.T) {
	pinDir := filepath.Join(netns.MountBPF(t), "crem")
	o, err := bpf.Load(config(pinDir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bpf.Load(config(pinDir)); !errors.Is(err, bpf.ErrBusy) {
		t.Errorf("second agent: %v", err)
	}
	if err := bpf.Uninstall(t.Context(), pinDir); !errors.Is(err, bpf.ErrBusy) {
		t.Errorf("uninstall under an agent: %v", err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	if o, err = bpf.Load(config(pinDir)); err != nil {
		t.Fatal(err)
	}
	o.Close()
}

// The pins vanish behind a fresh file system over the folder: the program that is attached is taken over by its name.
func TestG01_TakeOverWithoutPin(t *testing.T) {
	w := newWorld(t)
	dir := netns.MountBPF(t)
	o, err := bpf.Load(config(filepath.Join(dir, "crem")))
	if err != nil {
		t.Fatal(err)
	}
	w.attach(o)
	links := w.wantOne()
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0700"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	second, err := bpf.Load(config(filepath.Join(dir, "crem")))
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if a := w.attach(second); a.Ingress != bpf.TakenOver || a.Egress != bpf.TakenOver || a.Unchecked {
		t.Errorf("%+v", a)
	}
	if w.wantOne() != links {
		t.Error("the links changed")
	}
	// It is pinned again: a second Attach is an update.
	if a := w.attach(second); a.Ingress != bpf.Updated || a.Egress != bpf.Updated {
		t.Errorf("%+v", a)
	}
}

// The folder is lost under a running agent: its links stay, and the next Attach pins them again.
func TestLostPinIsMadeAgain(t *testing.T) {
	w := newWorld(t)
	pinDir := filepath.Join(netns.MountBPF(t), "crem")
	o, err := bpf.Load(config(pinDir))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	w.attach(o)
	links := w.wantOne()
	pins, err := filepath.Glob(filepath.Join(pinDir, "links", "*"))
	if err != nil || len(pins) != 2 {
		t.Fatalf("%v, %v", pins, err)
	}
	for _, pin := range pins {
		if err := os.Remove(pin); err != nil {
			t.Fatal(err)
		}
	}
	if w.wantOne() != links {
		t.Error("the links changed")
	}
	if a := w.attach(o); a.Ingress != bpf.Updated || a.Egress != bpf.Updated {
		t.Errorf("%+v", a)
	}
	if again, _ := filepath.Glob(filepath.Join(pinDir, "links", "*")); len(again) != 2 || w.wantOne() != links {
		t.Errorf("%v", again)
	}
}
