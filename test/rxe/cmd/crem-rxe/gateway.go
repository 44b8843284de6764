// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/test/lab/topology"
	"crem.dev/crem/test/lab/trial"
	"crem.dev/crem/test/rxe/vm"
)

// With ipsec each guest is a whole site: an RDMA host with Soft-RoCE, and in a network namespace of its own a gateway with an XFRM interface, on which the
// agent runs. What the lab calls gateways are routers of the provider then, which see ESP only.
//
//	root [veth0 10.1.0.2] --- [lan0 10.1.0.1] gw [ipsec0 192.0.2.1 / eth0 203.0.113.2] --- TAP, provider, line

const ifID = 42

// end is a site in such a guest.
type end struct {
	name    string // of the site
	guest   *vm.Guest
	n       int       // in the addresses
	inner   [2]string // address of the gateway inside the tunnel, IPv4 and IPv6
	outer   [2]string // address outside
	nextHop string    // MAC address of the provider's router
	spi     int       // of the newest state that arrives here
}

// pair are both ends.
type pair struct{ a, b *end }

func (w *world) ends() pair {
	return pair{
		&end{name: "east", guest: w.guestA, n: 1, inner: [2]string{topology.GwA4.String(), topology.GwA6.String()},
			outer: [2]string{"203.0.113.2", "2001:db8:113::2"}, nextHop: "02:c0:00:00:01:01", spi: 0x1000},
		&end{name: "west", guest: w.guestB, n: 2, inner: [2]string{topology.GwB4.String(), topology.GwB6.String()},
			outer: [2]string{"203.0.113.66", "2001:db8:113::66"}, nextHop: "02:c0:00:00:02:01", spi: 0x2000},
	}
}

func (p pair) both() []*end { return []*end{p.a, p.b} }

func (p pair) other(e *end) *end {
	if e == p.a {
		return p.b
	}
	return p.a
}

// withAgent adds the agent to an initramfs: the kernel takes several archives, one after the other.
func (w *world) withAgent(initrd string) (string, error) {
	base, err := os.ReadFile(initrd)
	if err != nil {
		return "", err
	}
	pack := exec.Command("cpio", "-o", "-H", "newc", "--quiet")
	pack.Dir, pack.Stdin = filepath.Dir(w.opt.agent), strings.NewReader(filepath.Base(w.opt.agent))
	archive, err := pack.Output()
	if err != nil {
		return "", fmt.Errorf("pack %s: %w", w.opt.agent, err)
	}
	all := bytes.NewBuffer(base)
	z, err := gzip.NewWriterLevel(all, gzip.BestSpeed)
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(z, bytes.NewReader(archive)); err != nil {
		return "", err
	}
	if err := z.Close(); err != nil {
		return "", err
	}
	name := filepath.Join(w.dir, "initrd.gz")
	return name, os.WriteFile(name, all.Bytes(), 0o600)
}

// provide makes the provider's routers carry the gateways' outer addresses.
func (w *world) provide(p pair) error {
	for _, r := range []struct {
		ns   *topology.Namespace
		e    *end
		mac  string
		via4 string
		via6 string
	}{
		{w.lab.GwA, p.a, topology.MACA.String(), topology.GwB4.String(), topology.GwB6.String()},
		{w.lab.GwB, p.b, topology.MACB.String(), topology.GwA4.String(), topology.GwA6.String()},
	} {
		far := p.other(r.e)
		var lines strings.Builder
		for i, via := range []string{r.via4, r.via6} {
			fmt.Fprintf(&lines, "route add %s dev %s\nneigh add %s lladdr %s dev %s\nroute add %s via %s dev %s onlink\n",
				r.e.outer[i], topology.Access, r.e.outer[i], r.mac, topology.Access, far.outer[i], via, topology.Uplink)
		}
		file := filepath.Join(w.dir, r.ns.Name+".ip")
		if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
			return err
		}
		process, err := w.lab.Start(r.ns, "ip", "-batch", file)
		if err != nil {
			return err
		}
		if _, err := process.Wait(10 * time.Second); err != nil {
			return err
		}
	}
	return nil
}

// do runs a script in a guest that must succeed.
func (w *world) do(ctx context.Context, e *end, script string) error {
	out, err := e.guest.Run(ctx, time.Minute, "set -e\n"+script)
	w.log(e.name, out)
	if err != nil {
		return fmt.Errorf("%w: %s", err, lastLine(out))
	}
	return nil
}

// build makes host and gateway of a guest.
func (w *world) build(ctx context.Context, p pair, e *end) error {
	o := p.other(e)
	r := strings.NewReplacer("{N}", fmt.Sprint(e.n), "{M}", fmt.Sprint(o.n), "{IN4}", e.inner[0], "{IN6}", e.inner[1], "{OUT4}", e.outer[0], "{OUT6}", e.outer[1],
		"{FARIN4}", o.inner[0], "{FARIN6}", o.inner[1], "{FAR4}", o.outer[0], "{FAR6}", o.outer[1], "{HOP}", e.nextHop,
		"{LANMTU}", "1500", "{MTU}", fmt.Sprint(lanMTU), "{ID}", fmt.Sprint(ifID))
	return w.do(ctx, e, r.Replace(`
ip netns add gw
ip link add veth0 type veth peer name lan0 netns gw
ip link set veth0 mtu {LANMTU} up
ip addr add 10.{N}.0.2/24 dev veth0
ip addr add fd00:{N}::2/64 dev veth0 nodad
ip route add default via 10.{N}.0.1
ip -6 route add default via fd00:{N}::1
rdma link add rxe0 type rxe netdev veth0
ip link set eth0 netns gw
ip -n gw link set lo up
ip -n gw link set lan0 mtu {LANMTU} up
ip -n gw addr add 10.{N}.0.1/24 dev lan0
ip -n gw addr add fd00:{N}::1/64 dev lan0 nodad
ip -n gw link set eth0 mtu {MTU} up
ip -n gw addr add {OUT4}/32 dev eth0
ip -n gw addr add {OUT6}/128 dev eth0 nodad
ip -n gw route add {FAR4}/32 dev eth0 src {OUT4}
ip -n gw -6 route add {FAR6}/128 dev eth0 src {OUT6}
ip -n gw neigh add {FAR4} lladdr {HOP} dev eth0
ip -n gw neigh add {FAR6} lladdr {HOP} dev eth0
ip -n gw link add ipsec0 type xfrm dev eth0 if_id {ID}
ip -n gw link set ipsec0 mtu {LANMTU} up
ip -n gw addr add {IN4}/32 dev ipsec0
ip -n gw addr add {IN6}/128 dev ipsec0 nodad
ip -n gw route add 10.{M}.0.0/16 dev ipsec0
ip -n gw route add {FARIN4}/32 dev ipsec0 src {IN4}
ip -n gw -6 route add fd00:{M}::/32 dev ipsec0
ip -n gw -6 route add {FARIN6}/128 dev ipsec0 src {IN6}
ip netns exec gw sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding'
`))
}

// policy is the arguments of ip xfrm policy for one direction of a selector.
func policy(dir, src, dst string) string {
	return fmt.Sprintf("dir %s src %s dst %s if_id %d", dir, src, dst, ifID)
}

func (p pair) template(from, to *end, family int) string {
	return fmt.Sprintf(" tmpl src %s dst %s proto esp reqid 1 mode tunnel", from.outer[family], to.outer[family])
}

// flowPolicies and messagePolicies are what a gateway needs for the flows of both families, and for CREM messages of one.
func (p pair) flowPolicies(e *end, family int) (list []string) {
	o := p.other(e)
	for _, prefix := range []string{"10.%d.0.0/16", "fd00:%d::/32"} {
		own, far := fmt.Sprintf(prefix, e.n), fmt.Sprintf(prefix, o.n)
		list = append(list, policy("out", own, far)+p.template(e, o, family), policy("fwd", far, own)+p.template(o, e, family), policy("in", far, own)+p.template(o, e, family))
	}
	return list
}

func (p pair) messagePolicies(e *end, family int) []string {
	o := p.other(e)
	return []string{policy("out", e.inner[family], o.inner[family]) + p.template(e, o, family), policy("in", o.inner[family], e.inner[family]) + p.template(o, e, family)}
}

func (w *world) setPolicies(ctx context.Context, e *end, list []string) error {
	return w.do(ctx, e, "ip -n gw xfrm policy add "+strings.Join(list, "\nip -n gw xfrm policy add "))
}

// state is one ESP state with a key of its own; AES-GCM as in RFC 4106, 128 bits and 4 octets of salt.
func (p pair) state(from, to *end, family, spi int) string {
	return fmt.Sprintf("src %s dst %s proto esp spi %#x mode tunnel reqid 1 if_id %d replay-window 64 flag af-unspec aead 'rfc4106(gcm(aes))' 0x%040x 128",
		from.outer[family], to.outer[family], spi, ifID, spi*0x9e3779b1)
}

// rekey gives both directions new states and takes the old ones away, in the order of an IKE daemon: who receives first.
func (w *world) rekey(ctx context.Context, p pair, family int, first bool) error {
	for _, to := range p.both() {
		from := p.other(to)
		old := to.spi
		to.spi++
		add := "ip -n gw xfrm state add " + p.state(from, to, family, to.spi)
		remove := fmt.Sprintf("ip -n gw xfrm state delete src %s dst %s proto esp spi %#x", from.outer[family], to.outer[family], old)
		steps := []struct {
			e      *end
			script string
		}{{to, add}, {from, add}, {from, remove}, {to, remove}}
		if first {
			steps = steps[:2]
		}
		for _, s := range steps {
			if s.script == remove && s.e == to {
				time.Sleep(2 * rtt) // what was encrypted with the old key arrives
			}
			if err := w.do(ctx, s.e, s.script); err != nil {
				return err
			}
		}
	}
	return nil
}

// startAgent starts the agent of a guest, anew if it ran.
func (w *world) startAgent(ctx context.Context, p pair, e *end, family int) error {
	domain := fmt.Sprintf(`apiVersion: crem.dev/v1alpha1
kind: CREMDomain
metadata: {name: lab}
spec:
  port: %d
  site: %s
  ipsec: {mode: Required}
  sites:
  - {name: east, cidrs: [10.1.0.0/16, "fd00:1::/32"], gateways: ["%s"]}
  - {name: west, cidrs: [10.2.0.0/16, "fd00:2::/32"], gateways: ["%s"]}
  nodes: {uplinks: [ipsec0]}
  profileRef: {name: %s}
`, trial.CREMPort, e.name, p.a.inner[family], p.b.inner[family], trial.ProfileName)
	return w.do(ctx, e, fmt.Sprintf(`killall crem-agent 2>/dev/null && sleep 1
cat >/tmp/domain.yaml <<'END'
%sEND
cat >/tmp/profile.yaml <<'END'
%sEND
ip netns exec gw sh -c 'mount -t bpf bpf /sys/fs/bpf; exec /crem-agent run -f /tmp/domain.yaml -f /tmp/profile.yaml --node %s --socket /tmp/agent.sock --memory 64Mi' >/tmp/agent.log 2>&1 &
`, domain, profile, e.name))
}

// status asks the agent of a guest.
func (w *world) status(ctx context.Context, e *end) (s agentapi.Status, err error) {
	out, err := e.guest.Run(ctx, 20*time.Second, `(printf 'GET /v1/status HTTP/1.0\r\n\r\n'; sleep 0.3) | /crem-agent socket --socket /tmp/agent.sock || tail -n 3 /tmp/agent.log`)
	if err != nil {
		return s, err
	}
	at := strings.IndexByte(out, '{')
	if at < 0 {
		return s, fmt.Errorf("%w: the agent of %s says %q", errNoAnswer, e.name, strings.TrimSpace(out))
	}
	return s, json.Unmarshal([]byte(out[at:]), &s)
}

var errNoAnswer = errors.New("no answer")
