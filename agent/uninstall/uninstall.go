// SPDX-License-Identifier: Apache-2.0

// Package uninstall takes everything off a node that agents left on it on purpose: programs stay attached when an agent stops, so
// that the next one need not attach them again. It removes nothing that is not the agent's.
package uninstall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"crem.dev/crem/agent/bpf"
)

// Run removes the links and maps under pinDir, the socket and the saved configuration of an agent that is gone. It gives a sentence for each thing
// removed, none if there was nothing. While an agent runs it removes nothing and says so, and so if ctx ends while it waits for other sites.
func Run(ctx context.Context, pinDir, socket, stateDir string) ([]string, error) {
	if conn, err := net.DialTimeout("unix", socket, time.Second); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("an agent answers on %s: stop it first, it would attach its programs again", socket)
	}
	was, err := inventory(pinDir)
	if err != nil {
		return nil, err
	}
	if err := bpf.Uninstall(ctx, pinDir); err != nil {
		return nil, fmt.Errorf("remove what is under %s: %w", pinDir, err)
	}
	if info, err := os.Lstat(socket); err == nil && info.Mode()&os.ModeSocket != 0 {
		if err := os.Remove(socket); err != nil {
			return was, fmt.Errorf("remove the socket: %w", err)
		}
		was = append(was, "socket "+socket)
	}
	saved, err := removeSaved(stateDir)
	return append(was, saved...), err
}

// removeSaved removes what the agent in a cluster saves, and the folder if there is nothing else in it.
func removeSaved(dir string) ([]string, error) {
	var was []string
	files, err := filepath.Glob(filepath.Join(dir, ".desired-*")) // left by a power loss
	if err != nil {
		return nil, fmt.Errorf("list the saved configuration: %w", err)
	}
	for _, file := range append(files, filepath.Join(dir, "desired.json")) {
		switch err := os.Remove(file); {
		case err == nil:
			was = append(was, "file "+file)
		case !errors.Is(err, os.ErrNotExist):
			return was, fmt.Errorf("remove the saved configuration: %w", err)
		}
	}
	if len(was) > 0 && os.Remove(dir) == nil { // it stays when something else is in it, or when it is a mount
		was = append(was, "folder "+dir)
	}
	return was, nil
}

// inventory lists what is pinned. The layout of the folder is that of package bpf.
func inventory(pinDir string) ([]string, error) {
	var list []string
	for _, dir := range []string{pinDir, filepath.Join(pinDir, "tunnels")} {
		entries, err := os.ReadDir(filepath.Join(dir, "links"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("list the pinned programs: %w", err)
		}
		for _, e := range entries {
			index, direction, _ := strings.Cut(e.Name(), "-")
			list = append(list, fmt.Sprintf("program on the %s of %s", direction, interfaceName(index)))
		}
		maps, err := filepath.Glob(filepath.Join(dir, "maps-*", "*"))
		if err != nil {
			return nil, fmt.Errorf("list the pinned maps: %w", err)
		}
		slices.Sort(maps)
		for _, m := range maps {
			list = append(list, "map "+filepath.Base(m))
		}
	}
	if _, err := os.Stat(pinDir); err == nil {
		list = append(list, "folder "+pinDir)
	}
	return list, nil
}

func interfaceName(index string) string {
	if n, err := strconv.Atoi(index); err == nil {
		if i, err := net.InterfaceByIndex(n); err == nil {
			return i.Name
		}
	}
	return "interface " + index + ", which is gone"
}
