// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"crem.dev/crem/agent/ipsec"
	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/internal/agentclient"
	"crem.dev/crem/test/kubeassets"
	"crem.dev/crem/test/netns"
	"crem.dev/crem/test/tcpline"
)

// cluster is a node whose agent talks to a real API server.
type cluster struct {
	*world
	t      *testing.T
	admin  client.Client
	line   *tcpline.Line
	config string // kubeconfig of the agent
	state  string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	netns.NeedRoot(t)
	dir, err := kubeassets.Dir()
	switch {
	case err != nil && kubeassets.Required():
		t.Fatal(err)
	case err != nil:
		t.Skip(err)
	}
	log.SetLogger(logr.Discard()) // of what starts the API server
	env := &envtest.Environment{BinaryAssetsDirectory: dir, CRDDirectoryPaths: []string{"../../config/crd/bases"}}
	cfg, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Log(err)
		}
	})
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := &cluster{world: newWorld(t), t: t, config: filepath.Join(t.TempDir(), "kubeconfig"), state: t.TempDir()}
	if c.admin, err = client.New(cfg, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	c.line = tcpline.New(t, cfg.Host, func(addr string) (ln net.Listener, err error) {
		c.ns.Do(func() { ln, err = net.Listen("tcp", addr) })
		return ln, err
	})
	k := clientcmdapi.NewConfig()
	k.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://" + c.line.Addr(), CertificateAuthorityData: cfg.CAData}
	k.AuthInfos["a"] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	k.Contexts["x"], k.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "a"}, "x"
	if err := clientcmd.WriteToFile(*k, c.config); err != nil {
		t.Fatal(err)
	}
	return c
}

// run starts the agent as in a cluster.
func (c *cluster) run() *process {
	c.t.Helper()
	return c.spawn(c.t, "run", "--kubeconfig", c.config, "--namespace", "default", "--node", "gw1", "--state-dir", c.state, "--socket", c.socket, "--pin-dir", c.pinDir,
		"--workers", "1", "--memory", "64Mi", "--log-format", "json")
}

func (c *cluster) node() *v1alpha1.CREMNode {
	c.t.Helper()
	n := new(v1alpha1.CREMNode)
	if err := c.admin.Get(c.t.Context(), types.NamespacedName{Name: "gw1"}, n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

func (c *cluster) change(f func(*v1alpha1.CREMNodeSpec)) {
	c.t.Helper()
	n := c.node()
	before := n.DeepCopy()
	f(&n.Spec)
	if err := c.admin.Patch(c.t.Context(), n, client.MergeFrom(before)); err != nil {
		c.t.Fatal(err)
	}
}

// awaitNode waits for a status on the API server.
func (c *cluster) awaitNode(p *process, what string, ok func(*v1alpha1.CREMNode) bool) {
	c.t.Helper()
	for end := time.Now().Add(40 * time.Second); !ok(c.node()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("not within 40 s: %s; status %+v; log:\n%s", what, c.node().Status, p.log.String())
		}
	}
}

func (c *cluster) links() int {
	c.t.Helper()
	links, err := os.ReadDir(filepath.Join(c.pinDir, "links"))
	if err != nil {
		c.t.Fatal(err)
	}
	return len(links)
}

func condition(n *v1alpha1.CREMNode, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(n.Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// policies are what an IKE daemon sets for the two gateways and their sites.
func policies(t *testing.T) (list []*netlink.XfrmPolicy) {
	t.Helper()
	parse := func(s string) *net.IPNet {
		_, n, err := net.ParseCIDR(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, x := range [][2]string{{"192.0.2.1/32", "192.0.2.2/32"}, {"10.1.0.0/16", "10.2.0.0/16"}} {
		for _, dir := range []netlink.Dir{netlink.XFRM_DIR_OUT, netlink.XFRM_DIR_IN, netlink.XFRM_DIR_FWD} {
			p := &netlink.XfrmPolicy{Src: parse(x[0]), Dst: parse(x[1]), Dir: dir, Tmpls: []netlink.XfrmPolicyTmpl{{
				Src: net.ParseIP("192.0.2.1"), Dst: net.ParseIP("192.0.2.2"), Proto: netlink.XFRM_PROTO_ESP, Mode: netlink.XFRM_MODE_TUNNEL, Reqid: 1,
			}}}
			if dir != netlink.XFRM_DIR_OUT {
				p.Src, p.Dst = p.Dst, p.Src
				p.Tmpls[0].Src, p.Tmpls[0].Dst = p.Tmpls[0].Dst, p.Tmpls[0].Src
			}
			list = append(list, p)
		}
	}
	return list
}

// TestPrivilegedAgentInACluster: a real API server, the real kernel. What the CREMNode says is attached and reported; IPsec that is required and lacks is named, and
// protection begins and ends with the policies; killed and started again without the API server the node is protected as before and nothing is removed (G20, G06);
// what went from the spec meanwhile goes when the API server answers.
func TestPrivilegedAgentInACluster(t *testing.T) {
	c := newCluster(t)
	n := &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "gw1"}, Spec: v1alpha1.CREMNodeSpec{
		Domains: []v1alpha1.NodeDomain{{
			Name: "backbone", Port: 52000, Site: "east", IPsec: v1alpha1.IPsec{Mode: v1alpha1.IPsecBoundaryFiltered}, Uplinks: []v1alpha1.InterfaceName{"wan0"},
			Sites: []v1alpha1.NodeSite{
				{Name: "east", CIDRs: []v1alpha1.NodePrefix{"10.1.0.0/16"}, Gateways: []v1alpha1.NodeAddress{"192.0.2.1"}},
				{Name: "west", CIDRs: []v1alpha1.NodePrefix{"10.2.0.0/16"}, Gateways: []v1alpha1.NodeAddress{"192.0.2.2"}},
			},
		}},
	}}
	p := c.run()
	time.Sleep(time.Second) // the agent is there before its CREMNode, as on a new node
	if err := c.admin.Create(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	c.awaitNode(p, "ready", func(n *v1alpha1.CREMNode) bool { return condition(n, "Ready").Status == metav1.ConditionTrue })
	t.Logf("ready %v after the CREMNode was made", time.Since(start))
	if s := c.node().Status; len(s.Uplinks) != 1 || !s.Uplinks[0].Attached || s.AppliedGeneration != 1 || s.Capabilities == nil || s.Capabilities.Kernel == "" {
		t.Errorf("status %+v", s)
	}
	if code, body := c.get(t, "/readyz"); code != http.StatusOK {
		t.Errorf("readyz %d %s", code, body)
	}

	c.change(func(s *v1alpha1.CREMNodeSpec) { s.Domains[0].IPsec.Mode = v1alpha1.IPsecRequired })
	c.awaitNode(p, "the policies are missing", func(n *v1alpha1.CREMNode) bool { return condition(n, "SecurityReady").Reason == "PolicyMissing" })
	security := condition(c.node(), "SecurityReady")
	if want := "no ESP policy covers dir out, UDP from 192.0.2.1/32 port 52000 to 192.0.2.2/32 port 52000"; !strings.Contains(security.Message, want) && !strings.Contains(security.Message, "no XFRM") {
		t.Errorf("the message is %q", security.Message)
	}
	t.Log(security.Message)
	if r := condition(c.node(), "Ready"); r.Status != metav1.ConditionFalse || r.Reason != "PolicyMissing" {
		t.Errorf("Ready %+v", r)
	}
	if _, err := ipsec.List(); err == nil {
		c.ipsecComesAndGoes(p)
	}

	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.end(t)
	c.line.Cut()
	p = c.run()
	c.until(t, p, func(s agentapi.Status) bool {
		return s.AppliedGeneration == 2 && s.APIConnected != nil && !*s.APIConnected
	})
	if code, body := c.get(t, "/readyz"); code != http.StatusOK || c.links() != 2 {
		t.Errorf("without the API server: readyz %d %s, %d links", code, body, c.links())
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.end(t)
	c.change(func(s *v1alpha1.CREMNodeSpec) { s.Domains = nil })
	p = c.run()
	c.until(t, p, func(s agentapi.Status) bool { return s.AppliedGeneration == 2 })
	time.Sleep(2 * time.Second)
	if c.links() != 2 {
		t.Errorf("%d links: something was removed before the API server answered", c.links())
	}
	c.line.Join()
	c.awaitNode(p, "the empty spec is reported", func(n *v1alpha1.CREMNode) bool {
		return n.Status.AppliedGeneration == 3 && condition(n, "Ready").Status == metav1.ConditionTrue
	})
	if c.links() != 0 {
		t.Errorf("%d links are left of a domain that is gone", c.links())
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.end(t)
	u := c.spawn(t, "uninstall", "--state-dir", c.state, "--pin-dir", c.pinDir, "--socket", c.socket)
	if code := u.end(t); code != exitOK || !strings.Contains(u.log.String(), "removed file "+c.state+"/desired.json") {
		t.Errorf("uninstall: exit code %d\n%s", code, u.log.String())
	}
}

// ipsecComesAndGoes sets the policies, and removes one.
func (c *cluster) ipsecComesAndGoes(p *process) {
	t := c.t
	t.Helper()
	list := policies(t)
	secured := func(want string) time.Duration {
		t.Helper()
		start, ask := time.Now(), agentclient.New(c.socket)
		for ; time.Since(start) < 30*time.Second; time.Sleep(2 * time.Millisecond) {
			if s, err := ask.Status(t.Context()); err == nil && len(s.Domains) == 1 && s.Domains[0].Security == want {
				return time.Since(start)
			}
		}
		t.Fatalf("not %s within 30 s; log:\n%s", want, p.log.String())
		return 0
	}
	c.ns.Do(func() {
		for _, x := range list {
			if err := netlink.XfrmPolicyAdd(x); err != nil {
				t.Fatal(err)
			}
		}
	})
	held := secured("Secured")
	t.Logf("protected %v after the policies came", held)
	if held < ipsec.HoldDown-time.Second {
		t.Errorf("protected after %v, without a hold-down", held)
	}
	c.awaitNode(p, "secured", func(n *v1alpha1.CREMNode) bool { return condition(n, "SecurityReady").Reason == "Secured" })
	c.ns.Do(func() {
		if err := netlink.XfrmPolicyDel(list[1]); err != nil {
			t.Fatal(err)
		}
	})
	gone := secured("PolicyMissing")
	t.Logf("not protected %v after a policy went", gone)
	if gone > time.Second {
		t.Errorf("still protected for %v", gone)
	}
	c.awaitNode(p, "the missing one is named", func(n *v1alpha1.CREMNode) bool {
		return strings.Contains(condition(n, "SecurityReady").Message, "dir in, UDP from 192.0.2.2/32 port 52000 to 192.0.2.1/32 port 52000")
	})
	c.ns.Do(func() {
		if err := netlink.XfrmPolicyAdd(list[1]); err != nil {
			t.Fatal(err)
		}
	})
	secured("Secured")
	if strings.Contains(p.log.String(), "panic") {
		t.Error(p.log.String())
	}
}
