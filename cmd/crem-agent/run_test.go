// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/internal/agentclient"
	"crem.dev/crem/test/netns"
)

const domain = `apiVersion: crem.dev/v1alpha1
kind: CREMDomain
metadata: {name: backbone}
spec:
  port: %d
  site: east
  ipsec: {mode: BoundaryFiltered}
  sites:
  - {name: east, cidrs: [10.1.0.0/16], gateways: [192.0.2.1]}
  - {name: west, cidrs: [10.2.0.0/16], gateways: [192.0.2.2]}
  nodes: {uplinks: [wan0]}
  profileRef: {name: standard}
---
apiVersion: crem.dev/v1alpha1
kind: CREMProfile
metadata: {name: standard}
spec: {}
`

// buffer is the log of a process, safe to read while it writes.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// process is an agent in a namespace of its own.
type process struct {
	cmd  *exec.Cmd
	log  buffer
	done chan error
}

// world is a node with one uplink.
type world struct {
	ns                   *netns.NS
	file, socket, pinDir string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{ns: netns.New(t), pinDir: filepath.Join(netns.MountBPF(t), "crem")}
	netns.Link(t, 9000, netns.End{NS: w.ns, Name: "wan0", Addrs: []string{"192.0.2.1/24"}}, netns.End{NS: netns.New(t), Name: "far0", Addrs: []string{"192.0.2.2/24"}})
	w.ns.Route("10.2.0.0/16", "192.0.2.2")
	dir := t.TempDir()
	w.file, w.socket = filepath.Join(dir, "domain.yaml"), filepath.Join(dir, "a.sock")
	w.write(t, 52000)
	return w
}

func (w *world) write(t *testing.T, port int) {
	t.Helper()
	if err := os.WriteFile(w.file, fmt.Appendf(nil, domain, port), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start starts the agent and waits until it has applied its configuration.
func (w *world) start(t *testing.T) *process {
	t.Helper()
	p := w.spawn(t, "run", "-f", w.file, "--node", "gw1", "--socket", w.socket, "--pin-dir", w.pinDir, "--workers", "1", "--memory", "64Mi", "--log-format", "json")
	w.until(t, p, func(s agentapi.Status) bool { return s.AppliedGeneration > 0 })
	return p
}

// spawn runs a command of the agent in the namespace.
func (w *world) spawn(t *testing.T, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(self, args...), done: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), "CREM_AGENT_TEST=1")
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := w.ns.Start(p.cmd); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p
}

// until waits for a status; only a hang makes it fail.
func (w *world) until(t *testing.T, p *process, ok func(agentapi.Status) bool) {
	t.Helper()
	client := agentclient.New(w.socket)
	var last error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		s, err := client.Status(t.Context())
		if err == nil && ok(s) {
			return
		}
		last = err
		select {
		case err := <-p.done:
			t.Fatalf("the agent ended: %v\n%s", err, p.log.String())
		default:
		}
	}
	t.Fatalf("not within 30 s, last error %v; log:\n%s", last, p.log.String())
}

// end waits for the process and gives its exit code.
func (p *process) end(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(30 * time.Second):
		t.Fatalf("does not end; log:\n%s", p.log.String())
		return -1
	}
}

// get asks the metrics address, which is inside the namespace.
func (w *world) get(t *testing.T, path string) (code int, body string) {
	t.Helper()
	w.ns.Do(func() {
		conn, err := net.Dial("tcp", "127.0.0.1:9464")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n", path); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		raw, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		code, body = res.StatusCode, string(raw)
	})
	return code, body
}

// TestPrivilegedLifeOfAnAgent: start, reconfigure, refuse, stop without detaching, start again, uninstall; with the real kernel.
func TestPrivilegedLifeOfAnAgent(t *testing.T) {
	w := newWorld(t)
	p := w.start(t)

	if code, body := w.get(t, "/readyz"); code != http.StatusOK {
		t.Errorf("readyz %d %s\n%s", code, body, p.log.String())
	}
	if code, body := w.get(t, "/healthz"); code != http.StatusOK {
		t.Errorf("healthz %d %s", code, body)
	}
	if code, body := w.get(t, "/metrics"); code != http.StatusOK || !strings.Contains(body, "crem_agent_uplink_attached{interface=\"wan0\"} 1\n") || !strings.Contains(body, "crem_agent_ready 1\n") {
		t.Errorf("metrics %d %.2000s", code, body)
	}

	w.write(t, 52001)
	w.until(t, p, func(s agentapi.Status) bool {
		return s.AppliedGeneration == 2 && len(s.Domains) == 1 && s.Domains[0].Port == 52001
	})
	w.write(t, 4791)
	w.until(t, p, func(s agentapi.Status) bool {
		return strings.Contains(s.ConfigStale, "is the port of RoCEv2 itself") && s.Domains[0].Port == 52001
	})
	if code, _ := w.get(t, "/readyz"); code != http.StatusOK {
		t.Error("a bad file made a working node unready")
	}
	w.write(t, 52001)
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	w.until(t, p, func(s agentapi.Status) bool { return s.ConfigStale == "" && s.AppliedGeneration >= 3 })

	second := w.spawn(t, "run", "-f", w.file, "--socket", w.socket, "--metrics-addr", "")
	if code := second.end(t); code != exitError || !strings.Contains(second.log.String(), "another agent answers on") {
		t.Errorf("a second agent: exit code %d\n%s", code, second.log.String())
	}
	busy := w.spawn(t, "uninstall", "--state-dir", filepath.Dir(w.socket), "--pin-dir", w.pinDir, "--socket", w.socket)
	if code := busy.end(t); code != exitError || !strings.Contains(busy.log.String(), "stop it first") {
		t.Errorf("uninstall under a running agent: exit code %d\n%s", code, busy.log.String())
	}

	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.end(t); code != exitOK || !strings.Contains(p.log.String(), "Agent stopped") {
		t.Errorf("exit code %d\n%s", code, p.log.String())
	}
	if _, err := os.Stat(w.socket); err == nil {
		t.Error("the socket is left")
	}
	links, err := os.ReadDir(filepath.Join(w.pinDir, "links"))
	if err != nil || len(links) != 2 {
		t.Errorf("the programs were detached at the end: %v %v", links, err)
	}

	again := w.start(t) // takes over what is pinned
	if err := again.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	again.end(t)

	u := w.spawn(t, "uninstall", "--state-dir", filepath.Dir(w.socket), "--pin-dir", w.pinDir, "--socket", w.socket)
	if code := u.end(t); code != exitOK {
		t.Errorf("uninstall: exit code %d\n%s", code, u.log.String())
	}
	for _, what := range []string{"removed program on the ingress of wan0\n", "removed program on the egress of wan0\n", "removed map ", "removed folder " + w.pinDir, "removed socket " + w.socket} {
		if !strings.Contains(u.log.String(), what) {
			t.Errorf("uninstall does not list %q:\n%s", what, u.log.String())
		}
	}
	if _, err := os.Stat(w.pinDir); err == nil {
		t.Error("the pin folder is left")
	}
	once := w.spawn(t, "uninstall", "--state-dir", filepath.Dir(w.socket), "--pin-dir", w.pinDir, "--socket", w.socket)
	if code := once.end(t); code != exitOK || once.log.String() != "nothing to remove\n" {
		t.Errorf("uninstall again: exit code %d\n%s", code, once.log.String())
	}
}
