// SPDX-License-Identifier: Apache-2.0

// Package clidoc writes the reference of a command line program from its commands, for docs/cli.md. Tests alone use it.
package clidoc

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Check compares the section of a program in a page with its commands; update writes it anew. The section stands between
// <!-- commands of NAME: … --> and <!-- end -->.
func Check(t testing.TB, page string, root *cobra.Command, update bool) {
	t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	section := regexp.MustCompile(`(?s)(<!-- commands of ` + root.Name() + `:[^\n]*-->\n).*?(<!-- end -->)`)
	m := section.FindStringSubmatchIndex(string(raw))
	if m == nil {
		t.Fatalf("%s has no section for %s", page, root.Name())
	}
	text := string(raw[:m[3]]) + "\n" + reference(root) + "\n" + string(raw[m[4]:])
	switch {
	case text == string(raw):
	case update:
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is out of date for %s, run go test with -update", page, root.Name())
	}
}

func reference(root *cobra.Command) string {
	var b strings.Builder
	for _, cmd := range root.Commands() {
		if !cmd.IsAvailableCommand() || cmd.Name() == "help" || cmd.Name() == "completion" {
			continue
		}
		fmt.Fprintf(&b, "### %s\n\n%s.\n\n```\n%s\n```\n\n", cmd.CommandPath(), cmd.Short, cmd.UseLine())
		if cmd.Long != "" {
			fmt.Fprintf(&b, "%s\n\n", cmd.Long)
		}
		if cmd.Example != "" {
			fmt.Fprintf(&b, "```\n%s\n```\n\n", unindent(cmd.Example))
		}
		flags(&b, cmd)
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func flags(b *strings.Builder, cmd *cobra.Command) {
	any := false
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if !any {
			b.WriteString("| flag | default | meaning |\n|---|---|---|\n")
			any = true
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		value := ""
		if f.DefValue != "" && f.DefValue != "[]" {
			value = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, value, f.Usage)
	})
	if any {
		b.WriteString("\n")
	}
}

func unindent(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}
