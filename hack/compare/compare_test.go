// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

// small is a Comparison of a few cells and runs, really computed.
func small(t *testing.T) Comparison {
	t.Helper()
	c := Comparison{Version: "test"}
	for _, loss := range []float64{1e-6, 1e-2} {
		c.Cells = append(c.Cells, cell(25*time.Millisecond, 128<<10, loss), cell(25*time.Millisecond, 8<<30, loss))
	}
	for _, key := range []string{cremGoBackN, cremMRC, mds, nack, veroce} {
		r, ok := simulate(key, 1<<20, 1e-3, 5, 1000)
		if !ok || r.Messages != 5 {
			t.Fatalf("%s: %+v", key, r)
		}
		c.Runs = append(c.Runs, r)
	}
	return c
}

// TestComparison: every mechanism has a number in every cell, what is within 3 % of the best is bold, and a run stands next to its analysis.
func TestComparison(t *testing.T) {
	c := small(t)
	for _, x := range c.Cells {
		for _, col := range columns {
			if v := x.P999[col.key]; v < 0.999 {
				t.Errorf("%d octets, loss %g: %s takes %g of the lossless time", x.Message, x.Loss, col.name, v)
			}
		}
		if len(x.P999) != len(columns) || len(x.Repair) != 4 {
			t.Errorf("%+v", x)
		}
	}
	for _, r := range c.Runs {
		if r.Mean < 0.99 || r.Analysis.Mean < 0.99 || r.P999 != 0 {
			t.Errorf("%+v", r)
		}
	}
	page := c.page()
	for _, row := range strings.Split(page, "\n") {
		if strings.HasPrefix(row, "| 8 GiB |") && !strings.Contains(row, "**") {
			t.Errorf("nothing is best in %s", row)
		}
	}
	for _, says := range []string{"### Round trip of 25ms", "| 1 MiB | 1e-3 | CREM, go-back-N | 5 |", "of 4 cells"} {
		if !strings.Contains(page, says) {
			t.Errorf("the page lacks %q", says)
		}
	}
}

// TestPageIsOfThisProgram: docs/compare.md has the tables that this program makes; its numbers need the long run.
func TestPageIsOfThisProgram(t *testing.T) {
	raw, err := os.ReadFile("../../docs/compare.md")
	if err != nil {
		t.Fatal(err)
	}
	made := small(t)
	for _, row := range strings.Split(made.page(), "\n") {
		head := strings.HasPrefix(row, "| message |") || strings.HasPrefix(row, "#") || strings.HasPrefix(row, "One message at a time")
		if head && !strings.Contains(string(raw), row+"\n") {
			t.Errorf("docs/compare.md lacks %q: make compare", row)
		}
	}
}
