// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Check says at once what would fail later.
func (p *Programs) Check() error {
	if os.Geteuid() != 0 {
		return errors.New("needs root: it makes network namespaces")
	}
	for _, name := range []string{p.WAN, p.RC, p.Agent} {
		if name == "" {
			continue
		}
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("%w: build it first (make build-lab)", err)
		}
	}
	return nil
}

// WriteJSON writes results to a file, and makes its folder.
func WriteJSON(name string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(name, append(text, '\n'))
}

// WriteFile writes a file, and makes its folder.
func WriteFile(name string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}
