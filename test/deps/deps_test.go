// SPDX-License-Identifier: Apache-2.0

// Package deps proves the dependency rules of docs/architecture.md over what the go command really links.
package deps

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"strings"
	"testing"
)

const module = "crem.dev/crem/"

// listed is the part of `go list -json` that the rules need.
type listed struct {
	ImportPath string
	Imports    []string
	Deps       []string
	Standard   bool
}

// pure packages: what they may import besides the standard library, and why.
var pure = map[string][]string{
	"agent/roce": {},
	"agent/fec": {
		module + "agent/fec/internal/gf", // the field and its kernels
		"github.com/zeebo/xxh3",          // the block digest: pure computation
	},
	"agent/fec/internal/gf": {
		"github.com/klauspost/reedsolomon", // portable field kernels: pure computation
		"github.com/klauspost/cpuid/v2",    // which kernel this processor can run
	},
	"agent/wire": {module + "agent/fec", module + "agent/roce"},
	"agent/csf":  {module + "agent/fec", module + "agent/roce", module + "agent/wire"},
	"agent/crf":  {module + "agent/fec", module + "agent/roce", module + "agent/wire"},
	"agent/ecn": {
		module + "agent/roce",               // roce.Never
		module + "agent/internal/flowtable", // bounded state of flows
	},
	"agent/internal/flowtable": {},
	"agent/reporter": {
		module + "agent/roce", module + "agent/wire",
		module + "agent/internal/flowtable", // bounded state of flows
	},
	"sim/rc":        {module + "agent/roce"},
	"sim/multipath": {module + "agent/roce", module + "sim/endpoint", module + "sim/rc"},
	"sim/world": {
		module + "agent/ecn",  // the two-threshold marker, codepoints
		module + "agent/roce", // roce.Never
	},
	"sim/endpoint": {module + "agent/roce"},
	"sim/gateway": {
		module + "agent/crf", module + "agent/csf", // the real machines
		module + "agent/ecn", module + "agent/fec", module + "agent/roce", module + "agent/wire",
		module + "sim/endpoint", module + "sim/world",
	},
	"sim": {
		module + "agent/crf", module + "agent/csf", module + "agent/ecn", module + "agent/fec", module + "agent/roce",
		module + "sim/endpoint", module + "sim/gateway", module + "sim/world",
	},
	"sim/model": {module + "agent/fec"},
}

// impure are standard packages by which a clock, a lock, I/O or a log would come into a pure package. `time` is not among them: its Duration is a
// value; time.Now and timers are refused by the linter (forbidigo).
var impure = []string{"os", "net", "net/http", "log", "log/slog", "syscall", "os/exec", "context", "io/fs", "runtime/debug"}

// forbidden says which package trees must not reach which, with the reason.
var forbidden = []struct{ from, to, why string }{
	{"agent/", "sigs.k8s.io/controller-runtime", "only agent/node talks to the API server"},
	{"agent/", "k8s.io/client-go", "only agent/node talks to the API server"},
	{"agent/", module + "controllers", "agent and controllers never import each other"},
	{"controllers/", module + "agent", "agent and controllers never import each other"},
	{"agent/", "github.com/google/gopacket", "gopacket serves tests, captures and decode; it has no RoCE layer and no place in the packet path"},
	{"agent/packet", module + "agent/csf", "packet I/O knows no protocol"},
	{"agent/packet", module + "agent/crf", "packet I/O knows no protocol"},
	{"agent/bpf", module + "agent/csf", "packet I/O knows no protocol"},
	{"agent/bpf", module + "agent/crf", "packet I/O knows no protocol"},
	{"agent/ipsec", module + "agent/engine", "ipsec looks at the kernel and knows nothing of packets"},
	{"agent/ipsec", module + "agent/bpf", "ipsec looks at the kernel and knows nothing of packets"},
	{"agent/node", "sigs.k8s.io/controller-runtime", "an agent watches two kinds by plain client-go: thousands of nodes carry what it links"},
	{"agent/engine", module + "api", "the engine obeys its own Config; only agent/node knows the API types"},
	{"agent/engine", "k8s.io/", "the engine obeys its own Config; only agent/node knows the API types"},
	{"internal/render", "k8s.io/client-go", "rendering is pure: no client"},
	{"internal/render", "sigs.k8s.io/controller-runtime", "rendering is pure: no client"},
	{"internal/render", module + "agent", "rendering must serve operator and CLI alike"},
	{"internal/plan", "k8s.io/client-go", "a plan is reckoned, not asked for"},
	{"internal/plan", "sigs.k8s.io/controller-runtime", "a plan is reckoned, not asked for"},
	{"controllers/", module + "internal/plugin", "controllers -> api, render only"},
	{"controllers/", module + "internal/agentapi", "the operator learns of agents from the API server alone"},
	{"controllers/", "github.com/cilium/ebpf", "the operator has nothing to do with packets"},
	{"controllers/", "github.com/vishvananda/netlink", "the operator has nothing to do with packets"},
	{"cmd/crem-operator", module + "agent", "the operator must not link the data path"},
	{"internal/render", module + "controllers", "rendering must serve operator and CLI alike"},
	{"internal/installation", module + "agent", "it works by the API alone"},
	{"internal/installation", module + "controllers", "it works by the API alone"},
	{"api/", module + "agent", "the API depends on nothing of ours"},
	{"api/", module + "internal", "the API depends on nothing of ours"},
	{"internal/agentapi", module + "agent", "the CLI must not link the data path"},
}

func list(t *testing.T, args ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,Deps,Standard"}, args...)...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func under(pkg, tree string) bool {
	return pkg == strings.TrimSuffix(tree, "/") || strings.HasPrefix(pkg, strings.TrimSuffix(tree, "/")+"/")
}

func isStandard(pkg string) bool { return !strings.Contains(strings.SplitN(pkg, "/", 2)[0], ".") }

func TestPurePackagesImportOnlyWhatTheyMay(t *testing.T) {
	for _, p := range list(t, "./...") {
		rel := strings.TrimPrefix(p.ImportPath, module)
		allowed, ok := pure[rel]
		if !ok {
			continue
		}
		for _, imp := range p.Imports {
			if isStandard(imp) {
				for _, bad := range impure {
					if imp == bad {
						t.Errorf("%s imports %s: a pure package has no I/O, log or process", rel, imp)
					}
				}
				continue
			}
			found := false
			for _, a := range allowed {
				found = found || imp == a
			}
			if !found {
				t.Errorf("%s imports %s: pure packages import the standard library and each other downwards, nothing else", rel, imp)
			}
		}
	}
}

func TestForbiddenDependencies(t *testing.T) {
	for _, p := range list(t, "./...") {
		rel := strings.TrimPrefix(p.ImportPath, module)
		for _, rule := range forbidden {
			if !under(rel, rule.from) || (rule.from == "agent/" && strings.HasPrefix(rule.why, "only agent/node") && under(rel, "agent/node")) {
				continue
			}
			for _, dep := range p.Deps {
				if under(dep, rule.to) || (strings.HasSuffix(rule.to, "/") && strings.HasPrefix(dep, rule.to)) {
					t.Errorf("%s depends on %s: %s", rel, dep, rule.why)
				}
			}
		}
	}
}

func TestNoGenericPackageNames(t *testing.T) {
	generic := map[string]bool{"util": true, "utils": true, "common": true, "helper": true, "helpers": true, "misc": true, "base": true, "types": true}
	for _, p := range list(t, "./...") {
		if name := path.Base(p.ImportPath); generic[name] {
			t.Errorf("%s: a package is named for what it provides", p.ImportPath)
		}
	}
}
