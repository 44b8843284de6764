// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"container/heap"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
)

// Network connects the uplinks of nodes in virtual time. It is safe for concurrent use, and with one caller every run
// with one seed is the same.
type Network struct {
	mu     sync.Mutex
	now    time.Duration
	random *rand.Rand
	nodes  []*Node
	paths  map[[2]*Node]Path
	flight flight
	sent   uint64
}

// Path is what one direction between two nodes does to a frame. The zero Path delivers all at once.
type Path struct {
	Delay     time.Duration
	Loss      float64 // probabilities
	Duplicate float64
	Late      float64       // of coming Behind later
	Behind    time.Duration // default: Delay
	CE        float64       // of being marked, for packets that are capable of it
	MTU       int           // largest IP packet, 0: any
	// Drop, if set, decides before everything else.
	Drop func(frame []byte) bool
}

// NewNetwork makes a network without nodes. Its time begins at one hour, so that nothing begins at zero.
func NewNetwork(seed uint64) *Network {
	return &Network{now: time.Hour, random: rand.New(rand.NewPCG(seed, 0)), paths: map[[2]*Node]Path{}}
}

// Now is the network's time.
func (n *Network) Now() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now
}

// SetPath sets the path from one node to another.
func (n *Network) SetPath(from, to *Node, p Path) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.paths[[2]*Node{from, to}] = p
}

// Advance moves the time on and delivers what is due until then, in order.
func (n *Network) Advance(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for end := n.now + d; ; {
		if len(n.flight) == 0 || n.flight[0].at > end {
			n.now = end
			return
		}
		f := heap.Pop(&n.flight).(*flying)
		n.now = f.at
		n.mu.Unlock() // what arrives is judged by the program, which reads the time
		f.to.arrive(f.frame)
		n.mu.Lock()
	}
}

// Next is when the next frame arrives somewhere, roce.Never if none is on its way.
func (n *Network) Next() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.flight) == 0 {
		return roce.Never
	}
	return n.flight[0].at
}

// InFlight is the number of frames on their way.
func (n *Network) InFlight() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.flight)
}

// transmit puts a frame on its way to the node that has the destination address.
func (n *Network) transmit(from *Node, frame []byte, to netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, node := range n.nodes {
		if node != from && node.has(to) {
			n.fly(n.paths[[2]*Node{from, node}], node, append([]byte{}, frame...))
			return
		}
	}
}

func (n *Network) fly(p Path, to *Node, frame []byte) {
	chance := func(probability float64) bool { return probability > 0 && n.random.Float64() < probability }
	if p.Drop != nil && p.Drop(frame) || chance(p.Loss) || p.MTU > 0 && len(frame)-ethernetLen > p.MTU {
		return
	}
	if chance(p.CE) {
		markCE(frame)
	}
	copies := 1
	if chance(p.Duplicate) {
		copies++
	}
	for range copies {
		at := n.now + p.Delay
		if chance(p.Late) {
			behind := p.Behind
			if behind == 0 {
				behind = p.Delay
			}
			at += behind
		}
		n.sent++
		heap.Push(&n.flight, &flying{at: at, order: n.sent, to: to, frame: append([]byte{}, frame...)})
	}
}

// markCE sets congestion experienced in the IP header, if it is capable of it.
func markCE(frame []byte) {
	ip := frame[ethernetLen:]
	if frame[12] == 0x08 && ip[1]&3 != 0 {
		ip[1] |= 3
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], internetChecksum(ip[:20]))
	} else if frame[12] == 0x86 && ip[1]&0x30 != 0 {
		ip[1] |= 0x30
	}
}

// flying is a frame on its way; flight is ordered by arrival.
type flying struct {
	at    time.Duration
	order uint64
	to    *Node
	frame []byte
}

type flight []*flying

func (f flight) Len() int { return len(f) }
func (f flight) Less(i, j int) bool {
	return f[i].at < f[j].at || f[i].at == f[j].at && f[i].order < f[j].order
}
func (f flight) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flight) Push(x any)   { *f = append(*f, x.(*flying)) }
func (f *flight) Pop() any {
	old := *f
	last := old[len(old)-1]
	*f = old[:len(old)-1]
	return last
}

// NodeConfig describes a node.
type NodeConfig struct {
	Workers   int
	Uplinks   int            // default 1
	MTU       int            // of the uplinks
	RingSlots int            // default 1024
	Addrs     []netip.Addr   // the node's own
	Behind    []netip.Prefix // endpoints that it leads to
}

// uplinkIndex is the interface index of a node's first uplink; the others follow.
const uplinkIndex = 2

// Node is a node whose frames all take one of its uplinks at a time.
type Node struct {
	network *Network
	config  NodeConfig
	program *Program

	mu        sync.Mutex
	route     int // the interface index of the uplink in use
	taps      map[int][]*tap
	sockets   map[uint16][]*socket
	delivered [][]byte
	held      [][]byte
}

// Node adds a node.
func (n *Network) Node(c NodeConfig) *Node {
	if c.RingSlots == 0 {
		c.RingSlots = 1024
	}
	node := &Node{
		network: n, config: c, program: NewProgram(c.Workers, c.RingSlots, n.Now),
		route: uplinkIndex, taps: map[int][]*tap{}, sockets: map[uint16][]*socket{},
	}
	for i := range max(c.Uplinks, 1) {
		for range c.Workers {
			node.taps[uplinkIndex+i] = append(node.taps[uplinkIndex+i], &tap{node: node})
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nodes = append(n.nodes, node)
	return node
}

func (node *Node) has(a netip.Addr) bool { return node.owns(a) || within(node.config.Behind, a) }

func (node *Node) owns(a netip.Addr) bool {
	for _, own := range node.config.Addrs {
		if own == a {
			return true
		}
	}
	return false
}

// Ifindex is the interface index of the uplink in use.
func (node *Node) Ifindex() int {
	node.mu.Lock()
	defer node.mu.Unlock()
	return node.route
}

// Route makes an uplink, the first one is 0, the one by which frames come and go from now on.
func (node *Node) Route(uplink int) {
	node.mu.Lock()
	defer node.mu.Unlock()
	node.route = uplinkIndex + uplink
}

// Program is the ingress program of the uplinks; it is the node's packet.Holder and has its rings.
func (node *Node) Program() *Program { return node.program }

// Taps opens the taps of the uplink in use, one a worker.
func (node *Node) Taps() []packet.Tap { return node.OpenTaps(node.Ifindex()) }

// OpenTaps opens the taps of an uplink, one a worker.
func (node *Node) OpenTaps(ifindex int) []packet.Tap {
	var taps []packet.Tap
	for _, t := range node.taps[ifindex] {
		t.open()
		taps = append(taps, t)
	}
	return taps
}

// Injector is an injector of the uplinks.
func (node *Node) Injector() packet.Injector { return &injector{node: node} }

// Sockets opens a CREM port, one socket a worker.
func (node *Node) Sockets(port uint16) []packet.Socket {
	var group []*socket
	sockets := make([]packet.Socket, node.config.Workers)
	for i := range sockets {
		s := &socket{node: node, port: port}
		group = append(group, s)
		sockets[i] = s
	}
	node.mu.Lock()
	defer node.mu.Unlock()
	node.sockets[port] = group
	return sockets
}

// Transmit sends a frame of an endpoint out of the uplink.
func (node *Node) Transmit(frame []byte) {
	d, ok := parseDatagram(frame)
	if !ok {
		return
	}
	node.tapped(frame, packet.Outgoing)
	node.network.transmit(node, frame, d.to.Addr())
}

// Delivered are the frames that went on to endpoints since the last call, in order: passed by the program or injected.
func (node *Node) Delivered() [][]byte {
	node.mu.Lock()
	defer node.mu.Unlock()
	d := node.delivered
	node.delivered = nil
	return d
}

func (node *Node) deliver(frame []byte) {
	node.mu.Lock()
	defer node.mu.Unlock()
	node.delivered = append(node.delivered, append([]byte{}, frame...))
}

// Held are the RoCEv2 frames that the program gave up to be held since the last call, in order.
func (node *Node) Held() [][]byte {
	node.mu.Lock()
	defer node.mu.Unlock()
	h := node.held
	node.held = nil
	return h
}

func (node *Node) hold(frame []byte) {
	node.mu.Lock()
	defer node.mu.Unlock()
	node.held = append(node.held, append([]byte{}, frame...))
}

// arrive is the way of a frame up from the uplink.
func (node *Node) arrive(frame []byte) {
	node.tapped(frame, 0)
	ifindex := node.Ifindex()
	if node.program.Ingress(frame, Meta{Ifindex: ifindex}) == Drop {
		if _, reason := node.program.Transports.Parse(frame); reason == roce.OK {
			node.hold(frame)
		}
		return
	}
	d, ok := parseDatagram(frame)
	if !ok {
		return
	}
	node.mu.Lock()
	group := node.sockets[d.to.Port()]
	node.mu.Unlock()
	if !node.owns(d.to.Addr()) || group == nil {
		node.deliver(frame)
		return
	}
	group[messageWorker(d.payload, len(group))].put(packet.Message{
		Data: append([]byte{}, d.payload...), From: d.from, To: d.to.Addr(), TOS: d.tos, Ifindex: ifindex,
	})
}
