// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apix "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"crem.dev/crem/api/v1alpha1"
)

// buffer is a log that is read while it is written.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// program is a running crem-operator.
type program struct {
	cmd             *exec.Cmd
	log             buffer
	health, metrics string
	ended           chan error
}

// built is where the program is built, once; testMain removes it.
var built string

var build = sync.OnceValues(func() (string, error) {
	var err error
	if built, err = os.MkdirTemp("", "crem-operator-test-"); err != nil {
		return "", err
	}
	path := filepath.Join(built, "crem-operator")
	cmd := exec.Command("go", "build", "-o", path, "crem.dev/crem/cmd/crem-operator")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// launch builds and starts the program as a pod would, with a kubeconfig for the pod's account.
func launch(t *testing.T) *program {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{health: address(t), metrics: address(t), ended: make(chan error, 1)}
	p.cmd = exec.Command(path, "run", "--kubeconfig", kubeconfig(t), "--namespace", namespace, "--health-addr", p.health, "--metrics-addr", p.metrics)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p
}

// address gives a free address of the loopback interface.
func address(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func get(url string) (int, string, error) {
	c := http.Client{Timeout: 5 * time.Second}
	resp, err := c.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

func (p *program) wantReady(t *testing.T, code int, says string) {
	t.Helper()
	within(t, patience, func() error {
		if got, body, err := get("http://" + p.health + "/readyz"); err != nil || got != code || !strings.Contains(body, says) {
			return fmt.Errorf("readyz: %d %s (%v); log: %s", got, body, err, p.log.String())
		}
		return nil
	})
}

// stop ends the program as a kubelet does.
func (p *program) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.ended:
		if err != nil {
			t.Errorf("%v: %s", err, p.log.String())
		}
	case <-time.After(patience):
		t.Error("does not end")
	}
}

// memory gives the resident set of the program, in MiB.
func (p *program) memory(t *testing.T, field string) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(raw), field+":")
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib / 1024
}

// TestProgram: the program waits for its custom resource definitions, works, shows itself, and gives its lease back at the end.
func TestProgram(t *testing.T) {
	clean(t)
	const missing = "cremendpointslices.crem.dev"
	crds, err := client.New(server, client.Options{Scheme: crdScheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	restore := func() {
		_, err := envtest.InstallCRDs(server, envtest.CRDInstallOptions{Paths: []string{"../../config/crd/bases"}, ErrorIfPathMissing: true})
		if err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(restore)
	if err := crds.Delete(t.Context(), &apix.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: missing}}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second) // until the API server's description of itself lacks it
	p := launch(t)
	p.wantReady(t, http.StatusServiceUnavailable, "CREMEndpointSlice: install the CRDs")
	if code, _, err := get("http://" + p.health + "/healthz"); code != http.StatusOK {
		t.Errorf("healthz: %d %v", code, err)
	}
	if n := strings.Count(p.log.String(), "Waiting for the custom resource definitions"); n != 1 {
		t.Errorf("said %d times: %s", n, p.log.String())
	}
	restore()
	p.wantReady(t, http.StatusOK, "ok")
	create(t, domain("d", 52000, "wan0", labelled("gw", "1")), node("n1", "gw=1"))
	within(t, patience, wantDomains(t, "n1", "d"))
	within(t, patience, func() error {
		_, body, err := get("http://" + p.metrics + "/metrics")
		if err != nil || !strings.Contains(body, `crem_operator_domain_nodes{domain="d",state="matched"} 1`) {
			return fmt.Errorf("no series of the domain (%v)", err)
		}
		return nil
	})
	lease := func() string {
		var l coordinationv1.Lease
		if err := api.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: "crem-operator"}, &l); err != nil || l.Spec.HolderIdentity == nil {
			return fmt.Sprint("none: ", err)
		}
		return *l.Spec.HolderIdentity
	}
	if lease() == "" {
		t.Error("nobody holds the lease")
	}
	p.stop(t)
	if holder := lease(); holder != "" {
		t.Errorf("%s still holds the lease", holder)
	}
	var n v1alpha1.CREMNode
	if err := api.Get(t.Context(), client.ObjectKey{Name: "n1"}, &n); err != nil {
		t.Errorf("the end of the operator took the node's share away: %v", err)
	}
}
