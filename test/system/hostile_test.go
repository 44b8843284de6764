// SPDX-License-Identifier: Apache-2.0

package system

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"crem.dev/crem/agent/wire"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/lab/endpoint"
	"crem.dev/crem/test/lab/raw"
	"crem.dev/crem/test/lab/topology"
	"crem.dev/crem/test/lab/wan"
)

const (
	hostile      = 1_000_000 // messages
	hostileShort = 100_000
	hostileRate  = 100_000 // a second
	// hostileMemory is how much an agent may grow by all of them: what it may use of its packet memory anyway, and a little.
	hostileMemory = 160 << 20
)

// attacker sends CREM messages that no peer means, at one gateway, from the WAN.
type attacker struct {
	w        *world
	g        *gateway
	out      *raw.Sender
	from, to frames.MAC
	random   *rand.Rand
	captured []message         // that the gateway's peer sent it
	sent     map[string]uint64 // by sender
}

// senders of hostile messages. A peer's address can be forged inside of the domain only: the boundary keeps others out (Section 11).
const (
	outside  = "outside"  // of the domain
	stranger = "stranger" // inside, no peer
	peer     = "peer"     // the address of the peer itself
)

func (w *world) attack(g *gateway, port string, seed uint64, captured []message) *attacker {
	w.t.Helper()
	a := w.intrude(g, port)
	a.random = rand.New(rand.NewPCG(seed, 1))
	for _, m := range captured {
		if m.toWest == (g == w.b) {
			a.captured = append(a.captured, m)
		}
	}
	if len(a.captured) < 50 {
		w.t.Fatalf("only %d messages captured towards %s", len(a.captured), g.ns.Name)
	}
	return a
}

// intrude makes an attacker that has seen nothing.
func (w *world) intrude(g *gateway, port string) *attacker {
	w.t.Helper()
	a := &attacker{w: w, g: g, sent: map[string]uint64{}}
	w.do(w.lab.WAN, func() error {
		device, err := net.InterfaceByName(port)
		if err != nil {
			return err
		}
		a.from = frames.MAC(device.HardwareAddr)
		a.out, err = raw.OpenSender(device.Index)
		return err
	})
	w.t.Cleanup(func() { _ = a.out.Close() })
	w.do(g.ns, func() error {
		device, err := net.InterfaceByName(topology.Uplink)
		if err == nil {
			a.to = frames.MAC(device.HardwareAddr)
		}
		return err
	})
	return a
}

// say sends one message to the gateway in the name of an address.
func (a *attacker) say(src, dst netip.Addr, message []byte) {
	h := frames.Headers{SrcMAC: a.from, DstMAC: a.to, Src: src, Dst: dst, SrcPort: cremPort, DstPort: cremPort, TOS: 2, Checksum: dst.Is6()}
	a.out.Queue(h.Frame(message))
	a.out.Flush()
}

// addresses of a kind of sender and of the gateway, of either IP version. The peers of this test speak IPv4.
func (a *attacker) addresses(kind string) (src, dst netip.Addr) {
	six := kind != peer && a.random.IntN(4) == 0
	west := a.g == a.w.b
	pick := func(four, six4 string, v6 bool) netip.Addr {
		if v6 {
			return netip.MustParseAddr(six4)
		}
		return netip.MustParseAddr(four)
	}
	own, other := topology.GwA4, topology.GwB4
	if six {
		own = topology.GwA6
	}
	if west {
		own, other = topology.GwB4, topology.GwA4
		if six {
			own = topology.GwB6
		}
	}
	switch {
	case kind == outside:
		return pick("203.0.113.66", "2001:db8:bad::66", six), own
	case kind == stranger && west:
		return pick("10.1.0.77", "fd00:1::77", six), own
	case kind == stranger:
		return pick("10.2.0.77", "fd00:2::77", six), own
	}
	return other, own
}

// octets are random ones.
func (a *attacker) octets(n int) []byte {
	b := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		binary.NativeEndian.PutUint64(b[i:], a.random.Uint64())
	}
	return b[:n]
}

// forge makes one message. What comes from a peer's address names no flow of that peer, unless it is a message of the peer again: who can forge more is
// the peer for all that the protocol can tell, and IPsec is the remedy.
func (a *attacker) forge(kind string, flips bool) []byte {
	from := a.captured[a.random.IntN(len(a.captured))].payload
	live := binary.BigEndian.Uint32(from[4:])
	choices := 4
	if kind == peer && !flips {
		choices = 3
	}
	switch a.random.IntN(choices) {
	case 0:
		b := a.octets(a.random.IntN(1400))
		if len(b) >= 8 && a.random.IntN(4) > 0 { // a header that is right
			b[0] = wire.Version<<4 | byte(a.random.IntN(11))
			binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
			if kind != peer && a.random.IntN(2) == 0 {
				binary.BigEndian.PutUint32(b[4:], live)
			}
		}
		return b
	case 1:
		b := append([]byte(nil), from[:a.random.IntN(len(from))]...)
		if len(b) >= 8 && a.random.IntN(2) == 0 {
			binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		}
		return b
	case 2:
		return from
	default:
		b := append([]byte(nil), from...)
		for range 1 + a.random.IntN(8) {
			b[a.random.IntN(len(b))] ^= 1 << a.random.IntN(8)
		}
		return b
	}
}

// send sends n messages at the rate of the attack.
func (a *attacker) send(n int, flips bool) {
	kinds := [...]string{outside, outside, stranger, stranger, peer}
	if flips {
		kinds = [...]string{peer, peer, peer, peer, peer}
	}
	start := time.Now()
	for i := 0; i < n; {
		if ahead := float64(i)/hostileRate - time.Since(start).Seconds(); ahead > 0 {
			time.Sleep(time.Duration(ahead * float64(time.Second)))
		}
		for range 64 {
			kind := kinds[a.random.IntN(len(kinds))]
			src, dst := a.addresses(kind)
			h := frames.Headers{SrcMAC: a.from, DstMAC: a.to, Src: src, Dst: dst, SrcPort: cremPort, DstPort: cremPort, TOS: 2, Checksum: dst.Is6()}
			a.out.Queue(h.Frame(a.forge(kind, flips)))
			a.sent[kind]++
			i++
		}
		a.out.Flush()
	}
}

// resident is how much memory a process has.
func (g *gateway) resident() int64 {
	g.w.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.process.Pid()))
	if err != nil {
		g.w.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				g.w.t.Fatal(err)
			}
			return n << 10
		}
	}
	g.w.t.Fatalf("no VmRSS in %s", text)
	return 0
}

// state is what hostile messages must not change.
type state struct {
	flows    map[string]uint32 // their IDs by name, of both roles
	hellos   uint64
	resident int64
	status   map[string]uint64 // counters
}

func (g *gateway) state() state {
	g.w.t.Helper()
	s := state{flows: map[string]uint32{}, resident: g.resident(), status: g.status().Counters}
	for _, role := range []string{"csf", "crf"} {
		for _, f := range g.protecting(role) {
			s.flows[f.ID] = f.FlowID
			s.hellos += f.Counters["hellos"]
		}
	}
	return s
}

// TestHostileMessages: a million random, truncated, replayed and (from others than the peer) bit-flipped messages, made of those of the same run, from
// outside of the domain, from inside, and from the peer's own address, at both live agents, while flows are protected on a lossy path. They change nothing
// but counters. Then bit-flipped ones from the peer's address, which may well be valid messages: whatever they do, no octet is wrong, nothing crashes, and
// the flows are protected in the end.
func TestHostileMessages(t *testing.T) {
	w := newWorld(t, options{path: wan.Settings{Delay: wan.Duration(5 * time.Millisecond), Loss: 0.005, Seed: 3}, profile: `{k: 32, maxHold: 200ms}`, each: func(g *gateway) {
		g.arguments = append(g.arguments, "--realtime=false") // the attackers are ordinary programs, and must get a processor too
	}})
	tap := w.sniff()
	o := rdma()
	o.Op, o.Duration, o.Config.Rate = endpoint.Mixed, time.Hour, 10_000_000
	running := w.transfer(o, false, false)
	s := w.stream(streamOptions{rate: 3000})
	w.awaitProtecting(2)
	w.eventually("some losses are restored", func() bool {
		n := uint64(0)
		for _, f := range w.b.flows("crf") {
			n += f.Restored
		}
		return n > 20 && len(w.b.protecting("csf")) > 0
	})
	captured := tap.stop()
	before := map[*gateway]state{w.a: w.a.state(), w.b: w.b.state()}

	total := hostile
	if testing.Short() {
		total = hostileShort
	}
	west, east := w.attack(w.b, topology.WANB, 11, captured), w.attack(w.a, topology.WANA, 12, captured)
	start, moved := time.Now(), s.received().distinct
	done := make(chan struct{})
	go func() { east.send(total/4, false); close(done) }()
	west.send(total-total/4, false)
	<-done
	t.Logf("%d messages in %v; the stream moved by %d packets", total, time.Since(start).Round(time.Millisecond), s.received().distinct-moved)
	for _, x := range []struct {
		g *gateway
		a *attacker
	}{{w.a, east}, {w.b, west}} {
		x.g.unchanged(before[x.g], x.a)
	}

	west.send(20_000, true)
	east.send(20_000, true)
	w.awaitProtecting(2)
	s.moves(3000)
	sent, got := s.end()
	t.Logf("%d sent, %d arrived, %d twice", sent, got.distinct, got.twice)
	w.stopTransfer(running)
}

// unchanged compares the agent with what it was before an attack.
func (g *gateway) unchanged(before state, a *attacker) {
	t := g.w.t
	t.Helper()
	now := g.state()
	for id, flow := range before.flows {
		if now.flows[id] != flow {
			t.Errorf("%s: %s was protected as flow %d, and is as flow %d", g.ns.Name, id, flow, now.flows[id])
		}
	}
	if len(now.flows) != len(before.flows) {
		t.Errorf("%s: %d flows, %d before", g.ns.Name, len(now.flows), len(before.flows))
	}
	if now.hellos != before.hellos {
		t.Errorf("%s: %d new HELLOs: a flow was in doubt", g.ns.Name, now.hellos-before.hellos)
	}
	if grown := now.resident - before.resident; grown > hostileMemory {
		t.Errorf("%s: grown by %d MiB", g.ns.Name, grown>>20)
	}
	boundary := now.status["kernel_boundary_source"] - before.status["kernel_boundary_source"]
	read := now.status["messages"] - before.status["messages"]
	drops := g.status().Drops
	t.Logf("%s: sent %v; the boundary dropped %d, the agent read %d messages, grown by %d MiB; drops %s",
		g.ns.Name, a.sent, boundary, read, (now.resident-before.resident)>>20, nonzero(drops))
	// It drops more: answers to the strangers of IP version 6 come from an address that is not in the domain either.
	if boundary < a.sent[outside] {
		t.Errorf("%s: the boundary dropped %d of %d messages from outside", g.ns.Name, boundary, a.sent[outside])
	}
	for _, reason := range []string{"message_malformed", "unknown_flow", "wrong_peer"} {
		if drops[reason] == 0 && (g == g.w.b || reason != "wrong_peer") {
			t.Errorf("%s: nothing was dropped as %s", g.ns.Name, reason)
		}
	}
	if drops["outside_domain"] > 0 {
		t.Errorf("%s: %d messages from outside came through the boundary", g.ns.Name, drops["outside_domain"])
	}
}

// stopTransfer ends a transfer before its time and demands that nothing that was placed in memory is wrong.
func (w *world) stopTransfer(t *transfer) {
	w.t.Helper()
	var d done
	for _, end := range []struct {
		p *topology.Process
		r *endpoint.Result
	}{{t.requester, &d.requester}, {t.responder, &d.responder}} {
		out, err := end.p.Stop(patience)
		if err == nil {
			err = unmarshal(out, end.r)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	if d.corrupt() > 0 || d.requester.Failed+d.responder.Failed > 0 || d.requester.Messages == 0 {
		w.t.Errorf("%d corrupt, %d messages complete, %d connections failed", d.corrupt(), d.requester.Messages, d.requester.Failed+d.responder.Failed)
	}
}
