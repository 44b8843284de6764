// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"crem.dev/crem/agent/roce"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

func run(t testing.TB, capture []byte, o Options) (string, Summary) {
	t.Helper()
	var out bytes.Buffer
	s, err := Capture(&out, bytes.NewReader(capture), o)
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), s
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestGolden(t *testing.T) {
	all := frames(t)
	for name, o := range map[string]Options{"all.txt": {Port: cremPort}, "all.json": {Port: cremPort, JSON: true}, "roce.txt": {}} {
		got, s := run(t, pcap(t, 1, 1<<16, all), o)
		golden(t, name, got+s.String()+"\n")
	}
	transports := &roce.Transports{VeRoCE: roce.VeRoCESettings{Enabled: true, Port: 4795}, MRC: roce.MRCSettings{Enabled: true}}
	for name, o := range map[string]Options{"multipath.txt": {Transports: transports}, "multipath-unknown.txt": {}} {
		got, s := run(t, pcap(t, 1, 1<<16, multipath(t)), o)
		golden(t, name, got+s.String()+"\n")
	}
	for _, snap := range []int{100, 60, 46} { // within the data, within the extension headers, within BTH and CREM header
		got, s := run(t, pcap(t, 1, snap, all), Options{Port: cremPort})
		golden(t, fmt.Sprintf("cut%d.txt", snap), got+s.String()+"\n")
	}
}

// Every line of the JSON form is an object, with the same fields as the text form.
func TestJSONLines(t *testing.T) {
	all := pcap(t, 1, 1<<16, frames(t))
	text, _ := run(t, all, Options{Port: cremPort})
	objects, _ := run(t, all, Options{Port: cremPort, JSON: true})
	lines, texts := strings.Split(strings.TrimSpace(objects), "\n"), strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != len(texts) || len(lines) < 20 {
		t.Fatalf("%d and %d lines", len(lines), len(texts))
	}
	for i, l := range lines {
		var v map[string]any
		if err := json.Unmarshal([]byte(l), &v); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		for name, value := range v {
			if s, ok := value.(string); ok && name != "time" && !strings.Contains(texts[i], s) {
				t.Errorf("text line %q has no %s %q", texts[i], name, s)
			}
		}
	}
}

// Real traffic: every line, every ICRC.
func TestSoftRoCE(t *testing.T) {
	var text strings.Builder
	for _, name := range []string{"roce-v4-write-loss3pct", "roce-v4-read", "roce-v4-send", "roce-v4-write", "roce-v6-send", "roce-v6-write"} {
		capture, err := os.ReadFile(filepath.Join("..", "..", "agent", "roce", "testdata", name+".pcap"))
		if err != nil {
			t.Fatal(err)
		}
		got, s := run(t, capture, Options{Port: cremPort})
		if s.RoCE != s.Packets || s.BadICRC != 0 {
			t.Errorf("%s: %v", name, s)
		}
		fmt.Fprintf(&text, "%s: %v\n%s", name, s, strings.Join(strings.SplitAfter(got, "\n")[:8], ""))
	}
	golden(t, "softroce.txt", text.String())
}

// Wireshark's own InfiniBand dissector reads the same opcodes, queue pairs, PSNs and AckReq bits.
func TestAgreesWithTshark(t *testing.T) {
	path, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed (Debian package tshark): no second opinion on RoCEv2 headers")
	}
	file := filepath.Join("..", "..", "agent", "roce", "testdata", "roce-v4-read.pcap")
	cmd := exec.Command(path, "-r", file, "-T", "fields", "-e", "infiniband.bth.destqp", "-e", "infiniband.bth.psn", "-e", "infiniband.bth.a", "-e", "infiniband.bth.opcode")
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	capture, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := run(t, capture, Options{JSON: true})
	ours, theirs := strings.Split(strings.TrimSpace(text), "\n"), strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(ours) != len(theirs) {
		t.Fatalf("%d lines, tshark has %d", len(ours), len(theirs))
	}
	for i := range ours {
		var v struct {
			QP, PSN, Opcode string
			AckReq          bool `json:"ack_req"`
		}
		if err := json.Unmarshal([]byte(ours[i]), &v); err != nil {
			t.Fatal(err)
		}
		f := strings.Fields(theirs[i])
		qp, _ := strconv.ParseUint(f[0], 0, 32)
		psn, _ := strconv.ParseUint(f[1], 0, 32)
		ack := f[2] == "1" || f[2] == "True"
		op, _ := strconv.ParseUint(f[3], 0, 8)
		if v.QP != roce.QPN(qp).String() || v.PSN != roce.PSN(psn).String() || v.AckReq != ack || v.Opcode != roce.Opcode(op).String() {
			t.Errorf("packet %d: %+v, tshark has %v", i+1, v, f)
		}
	}
}
