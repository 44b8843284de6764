// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// suite is one run of go test -bench.
type suite struct {
	pkg, pattern, time string
	count              int
	read               func(lines []line) []Result
}

// suites are the coding kernels, the packet functions and the machines.
func suites() []suite {
	return []suite{
		{"./agent/fec", "^(BenchmarkEncode|BenchmarkDecode|BenchmarkDigest|BenchmarkCell|BenchmarkMinRepair)$", "30ms", 3, coding},
		{"./agent/fec", "^BenchmarkEncodeRatio$", "500ms", 3, codingRatios},
		{"./agent/roce", "^(BenchmarkICRC|BenchmarkSolveID|BenchmarkParse)$", "50ms", 3, perCall("roce", "ns/packet")},
		{"./agent/csf", "^BenchmarkPacket$", "200ms", 3, perCall("csf", "ns/packet")},
		{"./agent/crf", "^(BenchmarkInOrder|BenchmarkLoss)$", "200ms", 3, perCall("crf", "ns/packet")},
	}
}

// line is one line of a benchmark's output: BenchmarkX/a/b-2  123  45.6 ns/op  7 MB/s.
type line struct {
	name    string // without "Benchmark" and the number of processors
	metrics map[string]float64
}

// run runs the suite in the module's folder.
func (s suite) run(ctx context.Context) ([]Result, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", s.pattern, "-benchtime", s.time, "-count", strconv.Itoa(s.count), s.pkg)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out.String())
	}
	lines := medians(parse(out.String()))
	if len(lines) == 0 {
		return nil, fmt.Errorf("%s: no benchmark has run", strings.Join(cmd.Args, " "))
	}
	return s.read(lines), nil
}

// parse reads the output of go test -bench.
func parse(text string) (lines []line) {
	for l := range strings.Lines(text) {
		f := strings.Fields(l)
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(f[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			if _, err := strconv.Atoi(name[i+1:]); err == nil {
				name = name[:i]
			}
		}
		x := line{name, map[string]float64{}}
		for i := 2; i+1 < len(f); i += 2 {
			if v, err := strconv.ParseFloat(f[i], 64); err == nil {
				x.metrics[f[i+1]] = v
			}
		}
		lines = append(lines, x)
	}
	return lines
}

// medians joins the repetitions of each benchmark.
func medians(lines []line) (joined []line) {
	values := map[string]map[string][]float64{}
	for _, l := range lines {
		if values[l.name] == nil {
			values[l.name] = map[string][]float64{}
			joined = append(joined, line{l.name, map[string]float64{}})
		}
		for unit, v := range l.metrics {
			values[l.name][unit] = append(values[l.name][unit], v)
		}
	}
	for _, l := range joined {
		for unit, v := range values[l.name] {
			l.metrics[unit] = median(v)
		}
	}
	return joined
}

// params are the key=value parts of a benchmark's name, and the rest of it as the case.
func (l line) params() map[string]any {
	parts := strings.Split(l.name, "/")
	p := map[string]any{}
	var rest []string
	for _, part := range parts[1:] {
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			rest = append(rest, part)
			continue
		}
		p[key] = value
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			p[key] = n
		}
	}
	if len(rest) > 0 {
		p["case"] = strings.Join(rest, "/")
	}
	return p
}

// kind is the first part of the name, in lower case.
func (l line) kind() string {
	kind, _, _ := strings.Cut(l.name, "/")
	return strings.ToLower(kind)
}

// coding are the kernels of agent/fec, for each block or packet. Encode stands beside the others in codingRatios.
func coding(lines []line) (results []Result) {
	for _, l := range lines {
		p := l.params()
		unit := "ns/block"
		switch l.kind() {
		case "encode":
			unit = "MB/s of sources"
			results = append(results, Result{Name: "fec/encode", Unit: unit, Value: l.metrics["MB/s"], Params: p})
			continue
		case "cell":
			unit = "ns/packet"
		case "minrepair":
			unit = "ns"
		}
		if v := l.metrics["MB/s"]; v > 0 {
			p["MB_per_s"] = v
		}
		results = append(results, Result{Name: "fec/" + l.kind(), Unit: unit, Value: l.metrics["ns/op"], Params: p})
	}
	return results
}

// codingRatios are Encode beside the other implementations: their time over ours, taken in turns in one run.
func codingRatios(lines []line) (results []Result) {
	for _, l := range lines {
		for _, other := range slices.Sorted(keysWith(l.metrics, "/own")) {
			to := map[string]string{
				"klauspost": "klauspost Encode", "klauspost-padded": "klauspost Encode, shards padded to 64 octets", "memcpy": "memcpy of the sources",
			}[strings.TrimSuffix(other, "/own")]
			results = append(results, Result{Name: "fec/encode", Unit: "times as fast", Value: l.metrics[other], RatioTo: to, Ratio: l.metrics[other], Params: l.params()})
		}
	}
	return results
}

func keysWith(m map[string]float64, suffix string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if strings.HasSuffix(k, suffix) && !yield(k) {
				return
			}
		}
	}
}

// perCall are benchmarks whose operation is one packet.
func perCall(pkg, unit string) func([]line) []Result {
	return func(lines []line) (results []Result) {
		for _, l := range lines {
			p := l.params()
			if v, ok := l.metrics["allocs/op"]; ok {
				p["allocs"] = v
			}
			results = append(results, Result{Name: pkg + "/" + l.kind(), Unit: unit, Value: l.metrics["ns/op"], Params: p})
		}
		return results
	}
}
