// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// programs are the paths of what runs in the labs, compiled once.
var programs struct{ agent, wan, rc string }

func TestMain(m *testing.M) { os.Exit(withPrograms(m)) }

func withPrograms(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // every test says that it needs root
	}
	dir, err := os.MkdirTemp("", "crem-system-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-o", dir+"/", "./cmd/crem-agent", "./test/lab/cmd/crem-wan", "./test/lab/cmd/crem-rc")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Printf("%v: %s\n", err, out)
		return 1
	}
	programs.agent, programs.wan, programs.rc = filepath.Join(dir, "crem-agent"), filepath.Join(dir, "crem-wan"), filepath.Join(dir, "crem-rc")
	return m.Run()
}
