// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// Result is one figure.
type Result struct {
	Name    string
	Unit    string
	Value   float64
	RatioTo string  // what it is compared with; empty: nothing
	Ratio   float64 // how many times as fast as that, from runs in turns; 0: no figure, Params["why"] says why
	Params  map[string]any
}

// MarshalJSON puts the parameters beside the fixed fields.
func (r Result) MarshalJSON() ([]byte, error) {
	flat := map[string]any{"name": r.Name, "unit": r.Unit, "value": rounded(r.Value)}
	if r.RatioTo != "" {
		flat["ratio_to"], flat["ratio"] = r.RatioTo, nil
		if r.Ratio > 0 {
			flat["ratio"] = rounded(r.Ratio)
		}
	}
	for k, v := range r.Params {
		if f, ok := v.(float64); ok {
			v = rounded(f)
		}
		flat[k] = v
	}
	return json.Marshal(flat)
}

// rounded keeps four digits: the rest is noise.
func rounded(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

func writeJSON(name string, results []Result) error {
	text, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}

// writeTable prints one line a figure.
func writeTable(w io.Writer, results []Result) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FIGURE\tVALUE\tUNIT\tRATIO\tTO\tPARAMETERS")
	for _, r := range results {
		ratio, to := "", r.RatioTo
		switch {
		case r.Ratio > 0:
			ratio = fmt.Sprintf("%.2f", r.Ratio)
		case to != "":
			ratio = "no figure"
		}
		var params []string
		for _, k := range slices.Sorted(maps.Keys(r.Params)) {
			v := r.Params[k]
			if f, ok := v.(float64); ok {
				v = rounded(f)
			}
			params = append(params, fmt.Sprintf("%s=%v", k, v))
		}
		fmt.Fprintf(t, "%s\t%v\t%s\t%s\t%s\t%s\n", r.Name, rounded(r.Value), r.Unit, ratio, to, strings.Join(params, " "))
	}
	t.Flush()
}

// median of some values; 0 of none.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
