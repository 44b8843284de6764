// SPDX-License-Identifier: Apache-2.0

// Command conformance joins the tables of docs/conformance.d into docs/conformance.md, in the order of the protocol's sections. Its test proves
// that the page is up to date and that every test it names exists.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

func main() {
	page, err := assemble(".")
	if err == nil {
		err = os.WriteFile("docs/conformance.md", []byte(page), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// row is one rule: its section as sorting key, and the whole line.
type row struct {
	key  []int
	line string
}

const intro = `# Conformance

Every rule of [protocol.md](protocol.md), with the test that proves it. ` + "`[D]`" + ` marks a decision where the draft is silent, ` + "`[D!]`" + ` one where the draft is wrong.
Tests are named with their package; ` + "`go test ./PACKAGE -run NAME`" + ` runs one. This page is made by ` + "`go run ./hack/conformance`" + ` from the tables in
conformance.d, one a package; a test proves that it is up to date and that each test exists.

| section | rule in our words | test |
|---|---|---|
`

// assemble reads the tables under root and returns the page.
func assemble(root string) (string, error) {
	files, err := filepath.Glob(filepath.Join(root, "docs/conformance.d/*.md"))
	if err != nil {
		return "", err
	}
	var rows []row
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		for _, line := range strings.Split(string(b), "\n") {
			cells := strings.Split(line, "|")
			if len(cells) < 5 || strings.TrimSpace(cells[1]) == "section" || strings.HasPrefix(strings.TrimSpace(cells[1]), "-") {
				continue
			}
			rows = append(rows, row{sectionKey(cells[1]), line})
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		if c := slices.Compare(a.key, b.key); c != 0 {
			return c
		}
		return strings.Compare(a.line, b.line)
	})
	var page strings.Builder
	page.WriteString(intro)
	for i, r := range rows {
		if i == 0 || rows[i-1].line != r.line {
			page.WriteString(r.line + "\n")
		}
	}
	return page.String(), nil
}

// sectionKey makes "6.1 rule 7" comparable: 6, 1, 7. What has no number comes last.
func sectionKey(section string) []int {
	var key []int
	for _, word := range strings.FieldsFunc(section, func(r rune) bool { return r < '0' || r > '9' }) {
		n, err := strconv.Atoi(word)
		if err != nil {
			break
		}
		key = append(key, n)
	}
	if len(key) == 0 {
		return []int{1 << 30}
	}
	return key
}
