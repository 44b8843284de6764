// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"testing"
)

// TestGeneratedFilesAreCurrent keeps the committed kernels and this program
// from drifting apart.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	for name, want := range map[string][]byte{asmFile: assembly(), stubFile: stubs()} {
		got, err := os.ReadFile("../" + name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the generator writes: run go generate in agent/fec/internal/gf", name)
		}
	}
}
