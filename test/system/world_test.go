// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"crem.dev/crem/test/lab/bridge"
	"crem.dev/crem/test/lab/topology"
	"crem.dev/crem/test/lab/wan"
	"crem.dev/crem/test/netns"
)

const (
	cremPort = 52000
	// patience bounds every wait: only a hang reaches it.
	patience = 60 * time.Second
)

// world is a lab with its WAN and, unless none is wanted, an agent in each gateway.
type world struct {
	t    *testing.T
	lab  *topology.Lab
	dir  string
	o    options
	wan  *topology.Process
	a, b *gateway // west-bound data leaves by a and arrives at b
}

// options of a world.
type options struct {
	lanMTU, wanMTU int            // 0: enough for RoCE packets of MTU 4096, and for their repair symbols
	path           wan.Settings   // each direction
	wire           bool           // a cable of the kernel's own joins the gateways in place of path: it loses nothing, however busy the machine is
	profile        string         // spec of the CREMProfile, as one YAML flow mapping; empty: no agent runs
	gateways       [2]string      // of the two sites; empty: those of the lab over IPv4; noGateways: none
	domain         string         // more of the CREMDomain's spec, indented by two
	arguments      []string       // more arguments of crem-agent run
	each           func(*gateway) // called before the agents start
}

const noGateways = "none"

func newWorld(t *testing.T, o options) *world {
	t.Helper()
	netns.NeedRoot(t)
	if o.lanMTU == 0 {
		o.lanMTU = 4200
	}
	if o.wanMTU == 0 {
		o.wanMTU = 4300
	}
	lab, err := topology.New(topology.Options{LANMTU: o.lanMTU, WANMTU: o.wanMTU})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, lab: lab, dir: t.TempDir(), o: o}
	t.Cleanup(w.close)
	if o.wire {
		w.joinByWire()
	} else {
		w.startWAN()
	}
	if o.profile != "" {
		w.a, w.b = w.newGateway(lab.GwA, "east"), w.newGateway(lab.GwB, "west")
		for _, g := range []*gateway{w.a, w.b} {
			if o.each != nil {
				o.each(g)
			}
			g.start()
		}
		w.a.awaitAttached()
		w.b.awaitAttached()
	}
	return w
}

// close takes everything down, and says what the agents said if the test failed.
func (w *world) close() {
	for _, g := range []*gateway{w.a, w.b} {
		if g == nil || g.process == nil {
			continue
		}
		if w.t.Failed() {
			w.t.Logf("%s:\n%s%s", g.process.Name, g.process.Said(), g.details())
		}
	}
	w.lab.Close()
}

// joinByWire joins the two interfaces of the WAN by a bridge of the kernel.
func (w *world) joinByWire() {
	w.t.Helper()
	err := w.lab.WAN.Do(func() error {
		wire := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "wire0", MTU: w.o.wanMTU}}
		if err := netlink.LinkAdd(wire); err != nil {
			return err
		}
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/wire0/disable_ipv6", []byte("1"), 0); err != nil {
			return err
		}
		for _, name := range []string{topology.WANA, topology.WANB} {
			port, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetMaster(port, wire); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(wire)
	})
	if err != nil {
		w.t.Fatalf("join the gateways: %v", err)
	}
}

func (w *world) wanSocket() string { return filepath.Join(w.dir, "wan.sock") }

func (w *world) startWAN() {
	w.t.Helper()
	ways := [2]wan.Settings{w.o.path, w.o.path}
	ways[1].Seed++
	for i := range ways {
		ways[i].CREMPort, ways[i].ProtectedOnly = cremPort, true
	}
	settings, err := json.Marshal(map[string]wan.Settings{"a_to_b": ways[0], "b_to_a": ways[1]})
	if err != nil {
		w.t.Fatal(err)
	}
	w.wan = w.start(w.lab.WAN, programs.wan, "-a", topology.WANA, "-b", topology.WANB, "-settings", string(settings), "-control", w.wanSocket())
	if err := w.wan.Ready("ready", patience); err != nil {
		w.t.Fatal(err)
	}
}

// start starts a program in a namespace of the lab.
func (w *world) start(n *topology.Namespace, program string, args ...string) *topology.Process {
	w.t.Helper()
	p, err := w.lab.Start(n, program, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// askWAN asks the WAN's control socket.
func (w *world) askWAN(method, path, body string, answer any) {
	w.t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", w.wanSocket())
		},
	}}
	request, err := http.NewRequestWithContext(w.t.Context(), method, "http://wan"+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		w.t.Fatalf("%s %s: %s", method, path, response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		w.t.Fatal(err)
	}
}

// path returns what the WAN has done so far.
func (w *world) path() (r bridge.Report) {
	w.t.Helper()
	w.askWAN(http.MethodGet, "/v1/stats", "", &r)
	return r
}

// do runs f in a namespace.
func (w *world) do(n *topology.Namespace, f func() error) {
	w.t.Helper()
	if err := n.Do(f); err != nil {
		w.t.Fatalf("in %s: %v", n.Name, err)
	}
}

// eventually waits until ok holds. Only a hang makes it fail.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
