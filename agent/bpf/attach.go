// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Direction is a side of an interface.
type Direction string

// The two hooks of an uplink.
const (
	Ingress Direction = "ingress"
	Egress  Direction = "egress"
)

// Op is what Attach had to do on a hook.
type Op string

// What Attach did. Only Created and Recreated change what is on the hook.
const (
	Updated   Op = "updated"    // the program of our link was exchanged in place
	Created   Op = "created"    // there was none
	Recreated Op = "recreated"  // the pinned link was dead: its interface had gone
	TakenOver Op = "taken over" // the link had lost its pin; its program was exchanged in place
)

// Attachment is the result of Attach for one interface.
type Attachment struct {
	Ifindex         int
	Ingress, Egress Op
	// Unchecked: other programs are on a hook, and whether one is ours could not be found out, because to look
	// at them needs the capability SYS_ADMIN.
	Unchecked bool
}

// hook is one place for a program.
type hook struct {
	ifindex   int
	direction Direction
}

func (h hook) String() string { return fmt.Sprintf("%s of interface %d", h.direction, h.ifindex) }

func (h hook) attachType() ebpf.AttachType {
	if h.direction == Ingress {
		return ebpf.AttachTCXIngress
	}
	return ebpf.AttachTCXEgress
}

// hooks are the links of one set of programs, by their places.
type hooks struct {
	links map[hook]*attachedLink
	seats map[hook]seat // what was attached there
	pins  *pins         // nil: links end with the process
	inner *hooks        // whose programs on ingress come before ours: they take the outer headers of tunnels off; nil: there are none
}

func newHooks() hooks { return hooks{links: map[hook]*attachedLink{}, seats: map[hook]seat{}} }

// seat is what belongs on a hook, and where among the programs that are there.
type seat struct {
	program *ebpf.Program
	name    string
	anchor  link.Anchor
}

// attachedLink is a link that this process holds. It holds pinned links too, so that a pin that vanishes under a
// running agent (a second mount over the folder) takes nothing away.
type attachedLink struct{ link.Link }

// Attach puts the programs on both hooks of an interface of the calling thread's network namespace, before other
// programs there. bare: its packets have no Ethernet header. A link of ours is updated in place; a dead one is
// replaced; a program of ours is never put beside another one of ours. Errors are of type *Error; after one, Attach may be tried again.
func (o *Objects) Attach(ifindex int, bare bool) (Attachment, error) {
	a := Attachment{Ifindex: ifindex}
	ingress, name := o.kernel.CremIngress, cremProgCremIngress
	if bare {
		ingress, name = o.kernel.CremBare, cremProgCremBare
	}
	var err error
	// Injected frames must be turned round before the first packet is held.
	if a.Egress, err = o.attach(hook{ifindex, Egress}, seat{o.kernel.CremEgress, cremProgCremEgress, link.Head()}, &a.Unchecked); err != nil {
		return a, err
	}
	a.Ingress, err = o.attach(hook{ifindex, Ingress}, seat{ingress, name, link.Head()}, &a.Unchecked)
	return a, err
}

func (o *hooks) attach(h hook, s seat, unchecked *bool) (Op, error) {
	op, err := o.take(h, s, unchecked)
	if err == nil {
		o.seats[h] = s
	}
	return op, err
}

func (o *hooks) take(h hook, s seat, unchecked *bool) (Op, error) {
	op := Created
	if l, ok := o.links[h]; ok {
		err := l.Update(s.program)
		if err == nil {
			return Updated, o.repin(h, l)
		}
		if !errors.Is(err, unix.ENOLINK) {
			return "", explain(err, "update the program on %s", h)
		}
		op = Recreated
		if err := o.release(h); err != nil {
			return "", err
		}
	}
	found, known, err := orphan(h, s.name)
	switch {
	case err != nil:
		return "", err
	case found != nil:
		return TakenOver, o.takeOver(h, found, s.program)
	case !known:
		*unchecked = true
	}
	l, err := link.AttachTCX(link.TCXOptions{
		Interface: h.ifindex, Program: s.program, Attach: h.attachType(), Anchor: o.anchor(h, s),
	})
	if err != nil {
		return "", explain(err, "attach to %s", h)
	}
	return op, o.keep(h, l)
}

// anchor is the place of a new program.
func (o *hooks) anchor(h hook, s seat) link.Anchor {
	if h.direction == Ingress && o.inner != nil {
		if l, ok := o.inner.links[h]; ok && l.ifindex() == h.ifindex {
			return link.AfterLink(l.Link)
		}
	}
	return s.anchor
}

// orphan looks for a program of ours on a hook. Unknown: some program could not be looked at.
func orphan(h hook, name string) (found *link.AttachedProgram, known bool, err error) {
	on, err := link.QueryPrograms(link.QueryOptions{Target: h.ifindex, Attach: h.attachType()})
	if err != nil {
		return nil, false, explain(err, "look at the programs on %s", h)
	}
	known = true
	for i, p := range on.Programs {
		itsName, err := programName(p.ID)
		switch {
		case errors.Is(err, os.ErrNotExist): // gone meanwhile
		case err != nil:
			known = false
		case itsName == name:
			return &on.Programs[i], true, nil
		}
	}
	return nil, known, nil
}

func programName(id ebpf.ProgramID) (string, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "", err
	}
	return info.Name, nil
}

func (o *hooks) takeOver(h hook, found *link.AttachedProgram, program *ebpf.Program) error {
	orphaned := func(err error) error {
		return &Error{Op: fmt.Sprintf("attach to %s", h), Class: ErrOrphanProgram, Err: err,
			Hint: "remove it with the tool that attached it, or restart the node"}
	}
	id, ok := found.LinkID()
	if !ok {
		return orphaned(errors.New("it has no link"))
	}
	l, err := link.NewFromID(id)
	if err != nil {
		return orphaned(err)
	}
	if err := l.Update(program); err != nil {
		return orphaned(errors.Join(err, l.Close()))
	}
	return o.keep(h, l)
}

// keep takes a new link into account and pins it.
func (o *hooks) keep(h hook, l link.Link) error {
	o.links[h] = &attachedLink{l}
	if o.pins == nil {
		return nil
	}
	if err := l.Pin(o.pins.linkPath(h)); err != nil {
		return explain(err, "pin the link on %s", h)
	}
	return nil
}

// repin pins a link again whose pin somebody removed.
func (o *hooks) repin(h hook, l *attachedLink) error {
	if o.pins == nil {
		return nil
	}
	if _, err := os.Stat(o.pins.linkPath(h)); err == nil {
		return nil
	}
	_ = l.Unpin() // forgets the path of the lost pin
	return o.keep(h, l.Link)
}

// release gives a link and its pin up.
func (o *hooks) release(h hook) error {
	l, ok := o.links[h]
	if !ok {
		return nil
	}
	delete(o.links, h)
	// Closing alone would detach some time later. A link whose interface is gone is detached already.
	if err := l.Detach(); err != nil && !errors.Is(err, unix.ENOLINK) {
		return explain(errors.Join(err, l.Close()), "detach from %s", h)
	}
	if o.pins != nil {
		if err := os.Remove(o.pins.linkPath(h)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return explain(errors.Join(err, l.Close()), "remove the pin of %s", h)
		}
	}
	if err := l.Close(); err != nil {
		return explain(err, "close the link on %s", h)
	}
	return nil
}

// Detach takes our programs off an interface, which may be gone already. Without any there it does nothing.
func (o *hooks) Detach(ifindex int) error {
	delete(o.seats, hook{ifindex, Ingress})
	delete(o.seats, hook{ifindex, Egress})
	// Nothing may be held any more when injected frames stop being turned round.
	return errors.Join(o.release(hook{ifindex, Ingress}), o.release(hook{ifindex, Egress}))
}

// Attached lists the indices of the interfaces on which programs of ours are attached, in ascending order: those of this
// process, and those of earlier ones with the same PinDir. Interfaces that are gone are not in it.
func (o *hooks) Attached() []int {
	found := map[int]bool{}
	for h, l := range o.links {
		if l.ifindex() == h.ifindex {
			found[h.ifindex] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// ifindex is the interface that the link is on, 0 when it is gone.
func (l *attachedLink) ifindex() int {
	info, err := l.Info()
	if err != nil || info.TCX() == nil {
		return 0
	}
	return int(info.TCX().Ifindex)
}

// findLinks opens the links that earlier agents pinned.
func (o *hooks) findLinks() error {
	hooks, err := o.pins.links()
	if err != nil {
		return err
	}
	for _, h := range hooks {
		l, err := link.LoadPinnedLink(o.pins.linkPath(h), nil)
		if err != nil {
			return explain(err, "open pinned link %s", o.pins.linkPath(h))
		}
		o.links[h] = &attachedLink{l}
	}
	return nil
}

func (p *pins) linkPath(h hook) string {
	return filepath.Join(p.dir, linksDir, fmt.Sprintf("%d-%s", h.ifindex, h.direction))
}

// links lists the hooks with a pin.
func (p *pins) links() ([]hook, error) {
	entries, err := os.ReadDir(filepath.Join(p.dir, linksDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, explain(err, "list pinned links")
	}
	var hooks []hook
	for _, e := range entries {
		index, direction, ok := strings.Cut(e.Name(), "-")
		ifindex, err := strconv.Atoi(index)
		if ok && err == nil && (direction == string(Ingress) || direction == string(Egress)) {
			hooks = append(hooks, hook{ifindex, Direction(direction)})
		}
	}
	return hooks, nil
}
