// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"crem.dev/crem/internal/clidoc"
)

// TestMain makes this test binary the agent itself when a test starts it as such.
func TestMain(m *testing.M) {
	if os.Getenv("CREM_AGENT_TEST") == "1" {
		main()
	}
	os.Exit(m.Run())
}

func call(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	code = execute(context.Background(), args, &o, &e)
	return code, o.String(), e.String()
}

// TestWrongCommandLines: exit code 2 and one sentence.
func TestWrongCommandLines(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("apiVersion: crem.dev/v1alpha1\nkind: CREMProfile\nmetadata: {name: p}\nspec: {k: 0}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sample := "../../config/samples/domain.yaml"
	socket := filepath.Join(dir, "a.sock")
	for _, tc := range []struct {
		name string
		args []string
		says string
	}{
		{"unknown command", []string{"start"}, `there is no command "start": crem-agent --help lists them`},
		{"unknown flag", []string{"run", "--file", "x"}, "unknown flag: --file: crem-agent run --help lists the flags"},
		{"argument", []string{"run", "x.yaml"}, `crem-agent run takes no argument "x.yaml"`},
		{"no file", []string{"run"}, "no file is given with -f, and this is no pod of a cluster: name the files of CREMDomain and CREMProfile documents, or a cluster with --kubeconfig"},
		{"files and cluster", []string{"run", "-f", sample, "--kubeconfig", "x"}, "-f and --kubeconfig exclude each other"},
		{"no such kubeconfig", []string{"run", "--kubeconfig", "none.conf"}, "--kubeconfig none.conf: "},
		{"missing file", []string{"run", "-f", "none.yaml", "--socket", socket, "--metrics-addr", ""}, "none.yaml does not exist: name a file"},
		{"wrong file", []string{"run", "-f", bad, "--socket", socket, "--metrics-addr", ""}, "bad.yaml, document 1 (CREMProfile p): spec.k 0 is out of range: write a number from 1 to 254"},
		{"labels", []string{"run", "-f", sample, "--node-labels", "gateway"}, "write key=value pairs with commas between"},
		{"workers", []string{"run", "-f", sample, "--workers", "-1"}, "write a number from 1 to 256, or 0 for one per processor"},
		{"memory", []string{"run", "-f", sample, "--memory", "1M"}, "write at least 16Mi"},
		{"log format", []string{"run", "-f", sample, "--log-format", "xml"}, "write text or json"},
		{"probe output", []string{"probe", "-o", "yaml"}, "write text or json"},
		{"probe of a wrong file", []string{"probe", "-f", bad}, "spec.k 0 is out of range"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, errOut := call(t, tc.args...)
			if code != exitUsage || out != "" || !strings.Contains(errOut, tc.says) {
				t.Errorf("exit code %d\n%s%s\nwant %s", code, out, errOut, tc.says)
			}
		})
	}
}

// TestOccupied: what is not the user's text is exit code 1, with what to do.
func TestOccupied(t *testing.T) {
	sample := "../../config/samples/domain.yaml"
	code, _, errOut := call(t, "run", "-f", sample, "--socket", filepath.Join(t.TempDir(), "a.sock"), "--metrics-addr", "999.0.0.1:1")
	if code != exitError || !strings.Contains(errOut, "name another with --metrics-addr") {
		t.Errorf("%d %s", code, errOut)
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errOut = call(t, "run", "-f", sample, "--socket", file, "--metrics-addr", "")
	if code != exitError || !strings.Contains(errOut, "name another path with --socket") {
		t.Errorf("%d %s", code, errOut)
	}
}

// TestProbe: the exit code is the verdict, text and JSON say the same.
func TestProbe(t *testing.T) {
	code, out, _ := call(t, "probe", "-f", "../../config/samples/domain.yaml", "-o", "json")
	var report struct {
		OK    bool
		Lacks []string
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	if report.OK != (code == exitOK) {
		t.Errorf("exit code %d with verdict %v", code, report.OK)
	}
	if !strings.Contains(strings.Join(report.Lacks, "\n"), "wan0 is no uplink: There is no interface of this name.") {
		t.Errorf("the domain's uplink was not looked at: %q", report.Lacks)
	}
	textCode, text, _ := call(t, "probe", "-f", "../../config/samples/domain.yaml")
	if textCode != code || !strings.Contains(text, "Capabilities\n") || !strings.Contains(text, "This node can") {
		t.Errorf("%d\n%s", textCode, text)
	}
}

func TestVersion(t *testing.T) {
	if code, out, _ := call(t, "version"); code != 0 || strings.TrimSpace(out) == "" {
		t.Errorf("%d %q", code, out)
	}
}

// TestHelp: every command says what it does and documents every flag.
func TestHelp(t *testing.T) {
	for _, cmd := range newRoot().Commands() {
		checkHelp(t, cmd)
	}
}

func checkHelp(t *testing.T, cmd *cobra.Command) {
	t.Helper()
	if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") || (cmd.Long == "" && cmd.Name() != "version") {
		t.Errorf("%s: help is not as it should be", cmd.CommandPath())
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Usage == "" {
			t.Errorf("%s --%s says nothing", cmd.CommandPath(), f.Name)
		}
	})
}

var update = flag.Bool("update", false, "write docs/cli.md anew")

// TestCommandLinePage: docs/cli.md says what the program does.
func TestCommandLinePage(t *testing.T) { clidoc.Check(t, "../../docs/cli.md", newRoot(), *update) }
