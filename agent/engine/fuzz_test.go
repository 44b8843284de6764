// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/packet/fake"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// A list of operations runs against two agents with traffic in all four spaces of queue pairs, and world says what must be true of all that comes
// out. One byte chooses an operation, the next ones are its arguments.
const (
	doSend       = iota // new packets of a stream
	doRead              // a READ request, which the other end answers
	doRepeat            // packets again
	doLose              // what the path loses next
	doPath              // another path
	doPass              // time
	doReplay            // a CREM message that was on the path comes again
	doFlip              // the same with octets changed
	doMove              // the same from or to another address
	doHello             // HELLO by somebody who knows the flow
	doRestart           // an agent ends, by SIGTERM or SIGKILL, and comes back
	doConfigure         // another configuration
	doStall             // a worker does not run
	doMemory            // a pool runs dry, or is whole again
	doRoute             // another uplink, or one that goes and comes
	doHaste             // packets arrive in the middle of batches
	doReport            // the status is asked for
	doReuse             // the queue pair number is used again
	doPathReport        // a reporter tells of losses
	operations
)

// frequent is what most of a list is about. Without traffic nothing else means much.
var frequent = [...]int{doSend, doPass, doSend, doRead, doPass, doSend, doLose, doRepeat}

// operation is the one that a byte chooses.
func operation(b int) int {
	if b < 4*operations {
		return b % operations
	}
	return frequent[b%len(frequent)]
}

// operator does the operations.
type operator struct {
	*world
	ops []byte
}

func (o *operator) arg(n int) int {
	if len(o.ops) == 0 {
		return 0
	}
	b := o.ops[0]
	o.ops = o.ops[1:]
	return int(b) % n
}

// shapeOf says what world the operations run in.
func shapeOf(a, b byte) (shape, setting) {
	sh := shape{workers: 1 + int(a&1), seed: uint64(b)}
	if a&2 != 0 {
		sh.maxFlows = 5
	}
	if a&4 != 0 {
		sh.ring = 16
	}
	return sh, setting{reporters: true, onPath: a&8 != 0, immediate: a&16 != 0, noDigest: a&32 != 0}
}

const mostOperations = 150

func runOperations(t testing.TB, ops []byte) {
	if len(ops) < 2 {
		return
	}
	sh, s := shapeOf(ops[0], ops[1])
	o := &operator{world: newWorld(t, sh, s), ops: ops[2:]}
	for i := range 3 {
		o.connect([]roce.PSN{0xffffd0, 1000, 500000}[i])
	}
	if ops[1]&1 != 0 {
		o.begin()
	}
	o.haste = time.Duration(ops[0]>>6) * 20 * time.Microsecond
	for range mostOperations {
		if len(o.ops) == 0 {
			break
		}
		o.do(operation(o.arg(256)))
		o.check()
	}
	o.end()
}

// begin has the first queue pair protected in all its spaces.
func (o *operator) begin() {
	for _, r := range o.queues[0].requests {
		for range 40 {
			r.read(4)
			r.send(messagePackets)
			o.pass(2 * time.Millisecond)
		}
	}
}

func (o *operator) stream() *stream {
	n := o.arg(2 * len(o.queues))
	return o.queues[n/2].requests[n%2]
}

func (o *operator) node() *node { return o.nodes[o.arg(2)] }

func (o *operator) do(op int) {
	switch op {
	case doSend:
		s, n := o.stream(), 1+o.arg(24)
		for range n {
			s.send(1)
			if n%2 == 0 {
				o.pass(100 * time.Microsecond)
			}
		}
	case doRead:
		o.stream().read(1 + o.arg(16))
	case doRepeat:
		s := o.stream()
		if n := o.arg(4); n == 3 {
			s = s.q.responses[s.from]
		}
		back, n := o.arg(40), 1+o.arg(40)
		s.repeat(s.next.Add(-1-back), n, back%3 == 0)
	case doLose:
		l := &o.node().lose
		switch n := o.arg(64); {
		case n < 16:
			l.sources += n%5 + 1
		case n < 32:
			l.messages += n%5 + 1
		default:
			l.rate = float64(n-32) / 100
		}
	case doPath:
		n, kind := o.node(), o.arg(8)
		p := fake.Path{Delay: []time.Duration{0, 100 * time.Microsecond, pathDelay, 40 * time.Millisecond}[o.arg(4)]}
		if kind&1 != 0 {
			p.Duplicate = 0.1
		}
		if kind&2 != 0 {
			p.Late, p.Behind = 0.1, 300*time.Microsecond
		}
		if kind&4 != 0 {
			p.CE = 0.1
		}
		n.other().excuses++ // a shorter delay is enough
		n.other().disorder = n.other().disorder || kind&3 != 0
		n.setPath(p)
	case doPass:
		d := time.Duration(o.arg(256))
		if d > 200 {
			d *= 5
		}
		if d > 1250 {
			d = 600000 // a minute
		}
		o.pass(d * 100 * time.Microsecond)
	case doReplay, doFlip, doMove:
		o.hostile(op)
	case doHello:
		o.hello()
	case doRestart:
		n := o.node()
		if o.arg(3) == 0 {
			n.kill()
			o.pass(time.Duration(o.arg(100)) * time.Millisecond)
		} else {
			n.stop()
			o.pass(time.Duration(o.arg(20)) * time.Millisecond)
		}
		n.start()
	case doConfigure:
		n, b := o.node(), o.arg(256)
		s := n.setting
		switch b % 10 {
		case 0:
			s.none = !s.none
		case 1:
			s.onPath = !s.onPath
		case 2:
			s.immediate = !s.immediate
		case 3:
			s.noDigest = !s.noDigest
		case 4:
			s.required = !s.required
		case 5:
			s.otherPort = !s.otherPort
		case 6:
			s.spare = !s.spare
		case 7:
			s.k, s.m = 1+b%32, b%4
		case 8:
			s.hold = time.Duration(1+b%64) * time.Millisecond
		default:
			s = setting{reporters: true}
		}
		n.apply(s)
		if b >= 128 { // the other site too
			n.other().apply(s)
		}
	case doStall:
		n := o.node()
		i := o.arg(o.shape.workers)
		n.stalled[i] = o.net.Now() + []time.Duration{time.Millisecond, 12 * time.Millisecond, 50 * time.Millisecond, 2 * time.Second}[o.arg(4)]
	case doMemory:
		pool := o.node().engine.workers[o.arg(o.shape.workers)].pool
		pool.SetLimit([]int64{0, 32 << 10, 256 << 10, 16 << 20}[o.arg(4)])
	case doRoute:
		o.route()
	case doHaste:
		o.haste = time.Duration(o.arg(4)) * 20 * time.Microsecond
	case doReport:
		for _, n := range o.nodes {
			for _, k := range n.engine.workers {
				k.report(true)
			}
		}
	case doReuse:
		s := o.stream()
		s.next, s.inside = s.next.Add(o.arg(256)<<14), 0
		o.nodes[1-s.from].disorder = true // the new PSNs may be before the old ones
	case doPathReport:
		s := o.stream()
		x := wire.PathReport{Src: s.key.Src, Dst: s.key.Dst, Label: uint32(s.key.QPN), HopCount: 1}
		x.Hops[0] = wire.Hop{NodeID: 1, Period: uint32(o.arg(8)), Lost: uint32(o.arg(256)), DelayChange: int32(o.arg(200)), Cause: wire.Cause(o.arg(6))}
		for range o.arg(8) {
			x.Hops[0].PSNs = x.Hops[0].PSNs.Append(s.next.Add(-o.arg(64)))
		}
		o.message(netip.AddrPortFrom(reporterAddr, cremPort), gateways[s.from], cremPort, x.Append(nil))
		o.rouse()
	}
}

// hostile sends a message that was seen on the path again, as it was, damaged, or with other addresses.
func (o *operator) hostile(op int) {
	if len(o.captured) == 0 {
		return
	}
	frame := o.captured[len(o.captured)-1-o.arg(len(o.captured))]
	from, to, port, msg := messageParts(frame)
	msg = append([]byte{}, msg...)
	switch op {
	case doFlip:
		for range 1 + o.arg(3) {
			msg[o.arg(256)%min(len(msg), 24+o.arg(64))] ^= byte(1 << o.arg(8))
		}
		if o.arg(4) == 0 {
			msg = msg[:len(msg)-o.arg(256)%len(msg)]
		}
	case doMove:
		addrs := []netip.Addr{from.Addr(), gateways[0], gateways[1], spares[0], strangerAddr, o.queues[0].end[0].addr, o.queues[1].end[1].addr}
		from = netip.AddrPortFrom(addrs[o.arg(len(addrs))], from.Port()+uint16(o.arg(2)))
		if addrs[0] = to; o.arg(2) == 0 {
			to = addrs[o.arg(len(addrs))]
		}
	}
	o.message(from, to, port, msg)
	o.rouse()
}

func (o *operator) rouse() {
	for _, n := range o.nodes {
		n.rouse()
	}
}

// hello asks for a flow, with a nonce of its own.
func (o *operator) hello() {
	s := o.stream()
	d := descriptor(s.key)
	if o.arg(4) == 0 {
		d.Kind = wire.KindRoCEv2Response
	}
	h := wire.Hello{Flow: d, Schemes: 3, MaxK: 255, MaxM: 4, MaxT: 9000, MTU: rdmaMTU, Nonce: uint64(1 + o.arg(4)), Extensions: uint16(o.arg(2))}
	from := []netip.Addr{gateways[s.from], s.key.Src, gateways[1-s.from], strangerAddr}[o.arg(4)]
	to := []netip.Addr{gateways[1-s.from], s.key.Dst, o.queues[0].end[1-s.from].addr}[o.arg(3)]
	o.message(netip.AddrPortFrom(from, cremPort), to, cremPort, h.Append(nil))
	o.rouse()
}

// route takes another uplink, or lets the first one go and come.
func (o *operator) route() {
	n := o.node()
	switch o.arg(3) {
	case 0:
		n.Route(0)
	case 1:
		n.Route(1)
	default:
		if len(n.links) == 2 {
			n.links = n.links[1:]
			n.Route(1)
		} else {
			n.links = []int{0, 1}
		}
		n.apply(n.setting)
	}
}

// end puts everything right again, and wants traffic to be protected and restored once more before all ends.
func (o *operator) end() {
	o.haste = 0
	for _, n := range o.nodes {
		n.lose = losing{}
		n.setPath(fake.Path{Delay: pathDelay})
		n.links = []int{0, 1}
		clear(n.stalled)
		for _, k := range n.engine.workers {
			k.pool.SetLimit(o.shape.memory / int64(o.shape.workers))
		}
		n.apply(setting{reporters: true})
	}
	o.pass(2 * time.Second)
	o.finish()
	s := o.queues[0].requests[0]
	s.protect()
	s.trickle(5)
	o.nodes[s.from].lose.sources = 1
	missing := s.next
	s.trickle(20)
	o.pass(200 * time.Millisecond)
	if s.got[missing] == 0 {
		o.t.Fatalf("PSN %v was not restored after all: %+v", missing, s.receiver().describe())
	}
	o.finish()
}

func FuzzWorld(f *testing.F) {
	f.Add([]byte{0, 1, doSend, 0, 20, doLose, 0, 2, doSend, 0, 20, doPass, 50, doSend, 0, 12, doPass, 250})
	f.Add([]byte{1, 2, doSend, 0, 20, doRead, 0, 9, doSend, 1, 9, doPass, 200, doRead, 1, 3, doLose, 1, 40, doRead, 0, 15, doPass, 99, doRepeat, 0, 1, 9, 12, doPass, 200})
	f.Add([]byte{8, 3, doSend, 0, 20, doPass, 200, doSend, 0, 8, doLose, 0, 3, doSend, 0, 9, doHello, 0, 1, 2, 1, 1, 1, doPass, 3, doSend, 0, 8, doPass, 255})
	f.Add([]byte{3, 4, doSend, 2, 20, doPass, 200, doHaste, 2, doConfigure, 0, 2, doSend, 2, 22, doConfigure, 1, 133, doSend, 2, 20, doPass, 200, doRestart, 0, 1, 3, doSend, 2, 9})
	f.Add([]byte{5, 5, doSend, 3, 20, doPass, 200, doStall, 0, 1, 2, doSend, 3, 23, doPass, 90, doMemory, 0, 0, 1, doLose, 1, 3, doSend, 3, 22, doPass, 20, doMove, 3, 5, 0, 1, 2, doFlip, 1, 1, 7, 8, 3, 1})
	f.Add([]byte{16, 6, doPath, 0, 3, 1, doSend, 1, 20, doPass, 200, doSend, 1, 21, doRoute, 0, 1, doSend, 1, 20, doRoute, 0, 2, doSend, 1, 20, doReuse, 1, 9, doSend, 1, 22, doReport, doReplay, 9, doPass, 255})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 600 {
			ops = ops[:600]
		}
		runOperations(t, ops)
	})
}

// Random lists in every test run.
func TestRandomWorlds(t *testing.T) {
	n := 60
	if testing.Short() {
		n = 10
	}
	for seed := range n {
		r := rand.New(rand.NewPCG(uint64(seed), 3))
		ops := make([]byte, 100+r.IntN(300))
		for i := range ops {
			ops[i] = byte(r.Uint32())
		}
		if !t.Run("", func(t *testing.T) { runOperations(t, ops) }) {
			t.Fatalf("seed %d", seed)
		}
	}
}
