// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

func TestPageIsUpToDate(t *testing.T) {
	want, err := assemble(root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "docs/conformance.md"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/conformance.md is not what docs/conformance.d says: run go run ./hack/conformance")
	}
}

var (
	testName = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark|Example)[A-Z][A-Za-z0-9_]*`)
	declared = regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?((?:Test|Fuzz|Benchmark|Example)[A-Za-z0-9_]*)\(`)
)

// Every test that the page names is a function of some test file, and every row names one.
func TestEveryRuleHasATest(t *testing.T) {
	exists := map[string]bool{}
	out, err := exec.Command("git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*_test.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(string(out)) {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue // deleted in the work tree
		}
		for _, m := range declared.FindAllStringSubmatch(string(b), -1) {
			exists[m[1]] = true
		}
	}
	page, err := assemble(root)
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, line := range strings.Split(page, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 5 || strings.HasPrefix(cells[1], "-") || strings.TrimSpace(cells[1]) == "section" {
			continue
		}
		rows++
		names := testName.FindAllString(cells[len(cells)-2], -1)
		if len(names) == 0 {
			t.Errorf("no test: %s", line)
		}
		for _, n := range names {
			if !exists[n] {
				t.Errorf("%s does not exist: %s", n, line)
			}
		}
	}
	if rows < 50 {
		t.Errorf("only %d rules", rows)
	}
}

func TestSectionsSort(t *testing.T) {
	for _, x := range [][2]string{{"4.1 rule 2", "4.1 rule 10"}, {"6.1", "6.1 rule 1"}, {"9.1", "10"}, {"11", "appendix"}} {
		a, b := sectionKey(x[0]), sectionKey(x[1])
		less := false
		for i := range b {
			if i >= len(a) || a[i] < b[i] {
				less = true
				break
			}
			if a[i] > b[i] {
				break
			}
		}
		if !less {
			t.Errorf("%q does not come before %q", x[0], x[1])
		}
	}
}
