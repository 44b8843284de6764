// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
)

const output = `goos: linux
BenchmarkEncode/k=32/m=4/T=1074/impl=own-2         	  100	 2000 ns/op	17184.00 MB/s	0 B/op	0 allocs/op
BenchmarkEncode/k=32/m=4/T=1074/impl=own-2         	  100	 1000 ns/op	34368.00 MB/s	0 B/op	0 allocs/op
BenchmarkEncode/k=32/m=4/T=1074/impl=own-2         	  100	 1100 ns/op	31243.00 MB/s	0 B/op	0 allocs/op
BenchmarkEncodeRatio/k=32/m=4/T=1074-2   	  100	 99 ns/op	 5.500 klauspost/own	 2.500 memcpy/own
PASS
`

func TestBenchmarksAreRead(t *testing.T) {
	lines := medians(parse(output))
	if len(lines) != 2 {
		t.Fatalf("%d benchmarks: %+v", len(lines), lines)
	}
	own := coding(lines[:1])[0]
	if own.Value != 31243 || own.Params["impl"] != "own" || own.Params["k"] != 32.0 || own.Name != "fec/encode" {
		t.Errorf("%+v", own)
	}
	ratios := codingRatios(lines[1:])
	if len(ratios) != 2 || ratios[0].RatioTo != "klauspost Encode" || ratios[0].Ratio != 5.5 || ratios[1].Ratio != 2.5 {
		t.Errorf("%+v", ratios)
	}
}

func TestResultsAreFlat(t *testing.T) {
	text, err := json.Marshal([]Result{
		{Name: "a", Unit: "kpps", Value: 123.456789, RatioTo: "b", Ratio: 0.5, Params: map[string]any{"m": 2, "ns": 1234.5678}},
		{Name: "c", RatioTo: "b"}, {Name: "d"},
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"m":2,"name":"a","ns":1235,"ratio":0.5,"ratio_to":"b","unit":"kpps","value":123.5},` +
		`{"name":"c","ratio":null,"ratio_to":"b","unit":"","value":0},{"name":"d","unit":"","value":0}]`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	var b strings.Builder
	writeTable(&b, []Result{{Name: "c", RatioTo: "b"}})
	if !strings.Contains(b.String(), "no figure") {
		t.Error(b.String())
	}
}

func TestMedian(t *testing.T) {
	for want, v := range map[float64][]float64{0: nil, 2: {3, 1, 2}, 2.5: {4, 1, 2, 3}} {
		if got := median(v); got != want {
			t.Errorf("median of %v: %v", v, got)
		}
	}
}
