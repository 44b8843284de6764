// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// load is the processor time that the programs of a test used, by name, and that all of the machine used.
type load map[string]time.Duration

// tick is the unit of times in /proc on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// loadNow reads the times of the API server, etcd, the operator and the test itself, the latter by its own name.
func loadNow(t *testing.T) load {
	t.Helper()
	l := load{}
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // it ended meanwhile
		}
		name, rest, _ := strings.Cut(string(raw), ") ")
		_, name, _ = strings.Cut(name, "(")
		switch name {
		case "kube-apiserver", "etcd", "crem-operator", "operator.test":
			l[name] += ticks(strings.Fields(rest)[11]) + ticks(strings.Fields(rest)[12])
		}
	}
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	for i, field := range strings.Fields(line)[1:9] {
		if i != 3 && i != 4 { // idle, and waiting for a disk
			l[whole] += ticks(field)
		}
	}
	return l
}

func ticks(text string) time.Duration {
	n, _ := strconv.Atoi(text)
	return time.Duration(n) * tick
}

// programs are those whose times are read, and the sum of all.
var programs = []string{"kube-apiserver", "etcd", "crem-operator", "operator.test", whole}

const whole = "all of the machine"

// since gives what was used since an earlier reading.
func (l load) since(before load) load {
	used := load{}
	for _, name := range programs {
		used[name] = l[name] - before[name]
	}
	return used
}

// over says what was used, in processors.
func (l load) over(took time.Duration) string {
	var parts []string
	for _, name := range programs {
		parts = append(parts, fmt.Sprintf("%s %.2f", name, l[name].Seconds()/took.Seconds()))
	}
	return fmt.Sprintf("%s of %d", strings.Join(parts, ", "), runtime.NumCPU())
}

// wantMachineBusy: something that takes longer than it may is excused only by a machine that has no processor left for it, of which the operator has a small
// part. Then the API server, etcd and the test, which have their own machines in a cluster, are what it waits for.
func (l load) wantMachineBusy(t *testing.T, took time.Duration) {
	t.Helper()
	capacity := took * time.Duration(runtime.NumCPU())
	if l[whole] < capacity*85/100 || l["crem-operator"] > l[whole]/4 {
		t.Errorf("takes %s, and not for want of processors: %s", took.Round(time.Millisecond), l.over(took))
		return
	}
	t.Logf("the API server is the limit: it used %s of processor time, the operator %s; the bound of 10 s is proven only where they do not share %d processors",
		l["kube-apiserver"].Round(time.Millisecond), l["crem-operator"].Round(time.Millisecond), runtime.NumCPU())
}
