// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// copyFormat is the first word of the disk copy. Another one is another format.
const copyFormat = "crem-desired-1"

// store keeps the last good configuration on disk: one line with format and SHA-256, then JSON.
type store struct{ dir, node string }

// saved is the content of the disk copy.
type saved struct {
	Desired Desired `json:"desired"`
	BootID  string  `json:"bootID"` // of the node when it was saved
}

func (s store) path() string { return filepath.Join(s.dir, "desired.json") }

// save replaces the copy as a whole: after a power loss there is the old one or the new one.
func (s store) save(d *Desired, bootID string) error {
	body, err := json.Marshal(saved{Desired: *d, BootID: bootID})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	text := fmt.Appendf(nil, "%s %s\n%s\n", copyFormat, hex.EncodeToString(sum[:]), body)
	// Always the same name: what a kill leaves is overwritten by the next.
	f, err := os.OpenFile(filepath.Join(s.dir, ".desired-new"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), s.path())
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return s.syncDir()
}

// syncDir makes the new name outlive a power loss.
func (s store) syncDir() error {
	d, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// load gives the copy, nil without one. The error is a sentence: a copy that is not wholly good is not used.
func (s store) load() (*saved, error) {
	raw, err := os.ReadFile(s.path())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s can not be read: %w", s.path(), err)
	}
	head, body, _ := bytes.Cut(raw, []byte("\n"))
	format, sum, _ := strings.Cut(string(head), " ")
	if format != copyFormat {
		return nil, fmt.Errorf("%s is of another version of the agent, or damaged: it is ignored, and replaced when the API server answers", s.path())
	}
	body = bytes.TrimSuffix(body, []byte("\n"))
	if got := sha256.Sum256(body); hex.EncodeToString(got[:]) != sum {
		return nil, fmt.Errorf("%s is damaged, its checksum is wrong: it is ignored, and replaced when the API server answers", s.path())
	}
	out := new(saved)
	if err := json.Unmarshal(body, out); err != nil {
		return nil, fmt.Errorf("%s can not be understood: %w: it is ignored, and replaced when the API server answers", s.path(), err)
	}
	if out.Desired.Node != s.node {
		return nil, fmt.Errorf("%s is of node %q and this is %q: it is ignored, and replaced when the API server answers", s.path(), out.Desired.Node, s.node)
	}
	return out, nil
}

// bootID is the kernel's name of this boot, empty when it gives none.
func bootID() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}
