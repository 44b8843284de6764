// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/test/netns"
)

// An interface goes and comes back with the same index: the dead link is replaced.
func TestDeadLinkIsReplaced(t *testing.T) {
	w := newWorld(t)
	pinDir := filepath.Join(netns.MountBPF(t), "crem")
	const index = 4711
	gone := netlink.LinkAttrs{Name: "gone0", Index: index}
	add := func() {
		t.Helper()
		w.node.Do(func() {
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: gone, PeerName: "gone1"}); err != nil {
				t.Fatal(err)
			}
		})
	}
	remove := func() {
		t.Helper()
		w.node.Do(func() {
			if err := netlink.LinkDel(&netlink.Veth{LinkAttrs: gone}); err != nil {
				t.Fatal(err)
			}
		})
	}
	add()
	o, err := bpf.Load(config(pinDir))
	if err != nil {
		t.Fatal(err)
	}
	w.up = index
	w.attach(o)
	remove()
	if got := o.Attached(); len(got) != 0 {
		t.Errorf("attached on %v", got)
	}
	add()
	if a := w.attach(o); a.Ingress != bpf.Recreated || a.Egress != bpf.Recreated {
		t.Errorf("%+v", a)
	}
	w.wantOne()
	remove()
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	add()
	if o, err = bpf.Load(config(pinDir)); err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if a := w.attach(o); a.Ingress != bpf.Recreated || a.Egress != bpf.Recreated {
		t.Errorf("after a restart: %+v", a)
	}
	w.wantOne()
	remove()
	if err := o.Detach(index); err != nil {
		t.Errorf("detach from an interface that is gone: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(pinDir, "links", "*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// G21: uninstalling removes what is ours and nothing else.
func TestG21_Uninstall(t *testing.T) {
	w := newWorld(t)
	dir := netns.MountBPF(t)
	pinDir := filepath.Join(dir, "crem")
	// Another program of another owner on the same hook.
	foreign, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, tcxNext), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	w.node.Do(func() {
		l, err := link.AttachTCX(link.TCXOptions{Interface: w.up, Program: foreign, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	})
	o, err := bpf.Load(config(pinDir))
	if err != nil {
		t.Fatal(err)
	}
	w.attach(o)
	if names, _ := w.programs(ebpf.AttachTCXIngress); len(names) != 2 || names[0] != "crem_ingress" || names[1] != "foreign" {
		t.Errorf("on ingress: %v", names)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	if err := bpf.Uninstall(t.Context(), pinDir); err != nil {
		t.Fatal(err)
	}
	if names, _ := w.programs(ebpf.AttachTCXIngress); len(names) != 1 || names[0] != "foreign" {
		t.Errorf("left on ingress: %v", names)
	}
	if names, _ := w.programs(ebpf.AttachTCXEgress); len(names) != 0 {
		t.Errorf("left on egress: %v", names)
	}
	if _, err := os.Stat(pinDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pin folder: %v", err)
	}
	if err := bpf.Uninstall(t.Context(), pinDir); err != nil {
		t.Errorf("again: %v", err)
	}
}

// Without pins the programs end with the process.
func TestWithoutPins(t *testing.T) {
	w := newWorld(t)
	o, err := bpf.Load(config(""))
	if err != nil {
		t.Fatal(err)
	}
	w.attach(o)
	w.wantOne()
	if err := o.Detach(w.up); err != nil {
		t.Fatal(err)
	}
	if names, _ := w.programs(ebpf.AttachTCXIngress); len(names) != 0 {
		t.Errorf("after Detach: %v", names)
	}
	w.attach(o)
	w.wantOne()
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	if names, _ := w.programs(ebpf.AttachTCXIngress); len(names) != 0 {
		t.Errorf("after Close: %v", names)
	}
}

// A folder that is no BPF file system is an error with its remedy.
func TestPinFolderElsewhere(t *testing.T) {
	netns.NeedRoot(t)
	var e *bpf.Error
	if _, err := bpf.Load(config(t.TempDir())); !errors.Is(err, bpf.ErrNoBPFFS) || !errors.As(err, &e) || e.Hint == "" {
		t.Errorf("%v", err)
	}
}
