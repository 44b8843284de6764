// SPDX-License-Identifier: Apache-2.0

// Command apidoc completes docs/api.md, which crd-ref-docs writes from the types of the API, with the conditions and their reasons, which are
// constants beside them.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
)

func main() {
	if err := complete("docs/api.md", "api/v1alpha1/conditions.go"); err != nil {
		fmt.Fprintln(os.Stderr, "apidoc:", err)
		os.Exit(1)
	}
}

const generated = "<!-- Written by go generate ./api/... from the types of api/v1alpha1; do not edit. -->\n\n"

func complete(page, source string) error {
	types, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	groups, err := constants(source)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(generated+tidy(string(types))+"\n"+groups), 0o644)
}

// tidy takes empty lines away where the generator leaves several, and spaces at the ends of lines.
func tidy(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		if line == "" && len(out) > 0 && out[len(out)-1] == "" {
			continue
		}
		out = append(out, line)
	}
	return strings.TrimRight(strings.Join(out, "\n"), "\n") + "\n"
}

// constants gives a table for each group of constants of a file. A comment reads "Name: text" or "Name (kinds): text".
func constants(source string) (string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), source, nil, parser.ParseComments)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("## Conditions and reasons\n")
	for _, d := range file.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		fmt.Fprintf(&b, "\n%s\n\n| value | meaning |\n| --- | --- |\n", line(group.Doc))
		for _, s := range group.Specs {
			v := s.(*ast.ValueSpec)
			value, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				return "", err
			}
			text, ok := strings.CutPrefix(line(v.Doc), v.Names[0].Name)
			if !ok {
				return "", fmt.Errorf("%s: the comment of %s does not begin with its name", source, v.Names[0].Name)
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", value, strings.TrimSpace(strings.TrimPrefix(text, ":")))
		}
	}
	return b.String(), nil
}

func line(doc *ast.CommentGroup) string { return strings.Join(strings.Fields(doc.Text()), " ") }
