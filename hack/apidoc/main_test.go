// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"crem.dev/crem/api/v1alpha1"
)

// The page names every kind, every condition and every reason. That it is up to date is proved by make verify, which writes it anew.
func TestPageHasAll(t *testing.T) {
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	tables, err := constants("../../api/v1alpha1/conditions.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(page), generated) || !strings.HasSuffix(string(page), tables) {
		t.Error("docs/api.md is not what go generate ./api/... writes")
	}
	for _, want := range []string{
		"#### " + v1alpha1.KindDomain + "\n", "#### " + v1alpha1.KindProfile + "\n", "#### CREMNode\n", "#### CREMEndpointSlice\n", "#### CREMNodeStatus\n",
		"| `" + v1alpha1.ConditionDegraded + "` | (CREMNode): ", "| `" + v1alpha1.ReasonTrafficNotVisible + "` | ",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("docs/api.md has no %q", want)
		}
	}
}

func TestTidy(t *testing.T) {
	if got := tidy("a  \n\n\n\nb\n\n"); got != "a\n\nb\n" {
		t.Errorf("%q", got)
	}
}
