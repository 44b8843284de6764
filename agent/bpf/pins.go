// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/packet"
)

// pins is the folder of pinned maps and links, locked against a second agent:
//
//	links/<interface index>-<ingress or egress>
//	maps-<layout>/<map name>
type pins struct {
	dir    string
	layout string
	lock   int
}

const (
	linksDir   = "links"
	mapsPrefix = "maps-"
	dirMode    = 0o700
)

func openPins(dir, layout string) (*pins, error) {
	if err := os.MkdirAll(filepath.Join(dir, linksDir), dirMode); err != nil {
		return nil, explain(err, "make pin folder %s", dir)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, explain(err, "look at pin folder %s", dir)
	}
	if st.Type != unix.BPF_FS_MAGIC {
		return nil, &Error{Op: "use pin folder " + dir, Class: ErrNoBPFFS, Hint: "mount -t bpf bpf /sys/fs/bpf"}
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, explain(err, "open pin folder %s", dir)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &Error{Op: "lock pin folder " + dir, Class: ErrBusy, Hint: "stop the other agent of this node", Err: err}
		}
		return nil, explain(err, "lock pin folder %s", dir)
	}
	return &pins{dir: dir, layout: layout, lock: fd}, nil
}

func (p *pins) close() error { return unix.Close(p.lock) }

func (p *pins) mapsDir() string { return filepath.Join(p.dir, mapsPrefix+p.layout) }

// maps are the pinned maps of the same layout, nil unless all are there.
func (p *pins) maps(spec *ebpf.CollectionSpec) map[string]*ebpf.Map {
	found := map[string]*ebpf.Map{}
	for name, m := range spec.Maps {
		if !pinned(name) {
			continue
		}
		old, err := ebpf.LoadPinnedMap(filepath.Join(p.mapsDir(), name), nil)
		if err == nil {
			found[name] = old
			err = m.Compatible(old)
		}
		if err != nil {
			for _, m := range found {
				m.Close()
			}
			return nil
		}
	}
	return found
}

// pinned tells a map of ours from a section of constants, which belongs to one load of the programs.
func pinned(name string) bool { return len(name) > 0 && name[0] != '.' }

// save pins new maps and removes the pins of maps that no later agent can use.
func (p *pins) save(maps map[string]*ebpf.Map, reused bool) error {
	if !reused {
		if err := removeMaps(p.mapsDir()); err != nil {
			return explain(err, "remove unfit maps")
		}
		if err := os.MkdirAll(p.mapsDir(), dirMode); err != nil {
			return explain(err, "make folder %s", p.mapsDir())
		}
		for name, m := range maps {
			if err := m.Pin(filepath.Join(p.mapsDir(), name)); err != nil {
				return explain(err, "pin map %s", name)
			}
		}
	}
	old, err := filepath.Glob(filepath.Join(p.dir, mapsPrefix+"*"))
	if err != nil {
		return fmt.Errorf("bpf: list pinned maps: %w", err)
	}
	for _, dir := range old {
		if dir != p.mapsDir() {
			if err := removeMaps(dir); err != nil {
				return explain(err, "remove the maps of another layout")
			}
		}
	}
	return nil
}

func (m *cremMaps) byName() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		cremMapCremCounts: m.CremCounts, cremMapCremFlowIndex: m.CremFlowIndex, cremMapCremFlows: m.CremFlows,
		cremMapCremLocal: m.CremLocal, cremMapCremMembers: m.CremMembers, cremMapCremPorts: m.CremPorts,
		cremMapCremRings: m.CremRings, cremMapCremSeen: m.CremSeen, cremMapCremServed: m.CremServed,
		cremMapCremSlots: m.CremSlots, cremMapCremTransports: m.CremTransports, cremMapCremTurns: m.CremTurns,
	}
}

// removeMaps removes a folder of pinned maps, and nothing in it that isn't one of ours by name.
func removeMaps(dir string) error {
	for _, names := range [...]map[string]*ebpf.Map{(&cremMaps{}).byName(), (&wanMaps{}).byName()} {
		for name := range names {
			if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// removeLink detaches a pinned link and removes the pin. Without its pin the link would go too, but some time later.
func (p *pins) removeLink(h hook) error {
	l, err := link.LoadPinnedLink(p.linkPath(h), nil)
	if err != nil {
		return explain(err, "open pinned link %s", p.linkPath(h))
	}
	defer l.Close()
	if err := l.Detach(); err != nil {
		return explain(err, "detach from %s", h)
	}
	if err := os.Remove(p.linkPath(h)); err != nil {
		return explain(err, "remove link %s", p.linkPath(h))
	}
	return nil
}

// longestPromise bounds how long Uninstall waits, whatever the map says.
const longestPromise = 10 * time.Second

// Uninstall removes the links and maps that agents with this pin folder left, and the folder; nothing else. The programs
// are detached when it returns, if no agent is running. It first waits, a few seconds at most, until no other site uses a tunnel to this node
// any more; if ctx ends meanwhile nothing is removed. Errors are of type *Error.
func Uninstall(ctx context.Context, pinDir string) error {
	promised, err := PromisedTo(pinDir)
	if err != nil {
		return err
	}
	if left := min(promised-packet.Now(), longestPromise); left > 0 {
		select {
		case <-ctx.Done():
			return &Error{
				Op: "wait until other sites have left the tunnels to this node", Err: context.Cause(ctx),
				Hint: "nothing is removed; uninstall again",
			}
		case <-time.After(left):
		}
	}
	if err := RemoveTunnels(pinDir); err != nil {
		return err
	}
	return uninstall(pinDir)
}

// uninstall removes one set of programs with their folder.
func uninstall(pinDir string) error {
	if _, err := os.Stat(pinDir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	p, err := openPins(pinDir, "")
	if err != nil {
		return err
	}
	defer p.close()
	links, err := p.links()
	if err != nil {
		return err
	}
	for _, h := range links {
		if err := p.removeLink(h); err != nil {
			return err
		}
	}
	dirs, err := filepath.Glob(filepath.Join(pinDir, mapsPrefix+"*"))
	if err != nil {
		return fmt.Errorf("bpf: list pinned maps: %w", err)
	}
	for _, dir := range dirs {
		if err := removeMaps(dir); err != nil {
			return explain(err, "remove maps %s", dir)
		}
	}
	for _, dir := range []string{filepath.Join(pinDir, linksDir), pinDir} {
		if err := os.Remove(dir); err != nil {
			return explain(err, "remove folder %s", dir)
		}
	}
	return nil
}
