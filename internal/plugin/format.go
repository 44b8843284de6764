// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
)

// table writes rows of cells with aligned columns.
func table(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		if _, err := fmt.Fprintln(w, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return w.Flush()
}

// count shows a number with at most three digits before its suffix.
func count(n float64) string {
	for _, step := range []struct {
		size   float64
		suffix string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}} {
		if n >= step.size {
			size := step.size
			if step.suffix == "k" {
				size = 1e3
			}
			return strconv.FormatFloat(n/size, 'f', digits(n/size), 64) + step.suffix
		}
	}
	return strconv.FormatFloat(math.Round(n), 'f', 0, 64)
}

func digits(n float64) int {
	if n < 100 {
		return 1
	}
	return 0
}

// octets shows a size in powers of 1024.
func octets(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

// bits shows octets a second as bits a second.
func bits(octetsPerSecond float64) string { return count(8*octetsPerSecond) + "bit/s" }

// share shows a fraction as a percentage, with more digits the smaller it is.
func share(f float64) string {
	p := 100 * f
	switch {
	case f == 0 || math.IsNaN(f):
		return "0%"
	case p < 0.001:
		return "<0.001%"
	case p < 0.1:
		return strconv.FormatFloat(p, 'f', 3, 64) + "%"
	case p < 10:
		return strconv.FormatFloat(p, 'f', 2, 64) + "%"
	}
	return strconv.FormatFloat(p, 'f', 0, 64) + "%"
}

// ratio is a/b, 0 without b.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// milliseconds shows seconds.
func milliseconds(s float64) string {
	switch {
	case s == 0:
		return "-"
	case s < 0.001:
		return fmt.Sprintf("%.0fus", s*1e6)
	case s < 0.1:
		return fmt.Sprintf("%.1fms", s*1e3)
	}
	return fmt.Sprintf("%.0fms", s*1e3)
}

// orDash shows something in an empty cell.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
