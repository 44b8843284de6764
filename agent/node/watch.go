// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long files must rest before they are read: an editor, or the kubelet, changes several things in a row.
const settle = 200 * time.Millisecond

// watch calls changed after something happened in the folders of the files, until ctx ends. Folders are watched, not files: an
// editor replaces the file, and Kubernetes swaps the symbolic link ..data to a new folder. It calls once at its start, and may
// call too often, never too seldom.
func (f *Files) watch(ctx context.Context, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the configuration: %w", err)
	}
	defer func() { _ = w.Close() }()
	if err := f.addFolders(w); err != nil {
		return err
	}
	changed() // what happened before the folders were watched
	rest := time.NewTimer(settle)
	rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-w.Events:
			if !ok {
				return errors.New("watch the configuration: the watch has ended")
			}
			rest.Reset(settle)
		case _, ok := <-w.Errors:
			if !ok {
				return errors.New("watch the configuration: the watch has ended")
			}
			rest.Reset(settle) // events were lost: look
		case <-rest.C:
			if err := f.addFolders(w); err != nil { // links may lead to other folders now
				return err
			}
			changed()
		}
	}
}

// addFolders watches the folder of every path and of what it leads to by symbolic links. A folder that is not there (any more)
// is left out: its parent tells when that changes.
func (f *Files) addFolders(w *fsnotify.Watcher) error {
	for _, path := range f.Paths {
		folders := []string{filepath.Dir(path)}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			folders = append(folders, filepath.Dir(real))
		}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			folders = append(folders, path)
			names, err := expand(path)
			if err == nil {
				for _, name := range names {
					if real, err := filepath.EvalSymlinks(name); err == nil {
						folders = append(folders, filepath.Dir(real))
					}
				}
			}
		}
		for _, folder := range folders {
			if err := w.Add(folder); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("watch %s: %w", folder, err)
			}
		}
	}
	return nil
}
