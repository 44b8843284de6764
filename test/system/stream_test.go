// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/rc"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/lab/raw"
	"crem.dev/crem/test/lab/topology"
)

// stream is an RDMA sender that never looks back and a receiver that notes every packet: numbered SEND packets from host A to host B, none of them sent
// twice. What does not arrive was lost, and nothing hides it.
type stream struct {
	w       *world
	o       streamOptions
	sent    atomic.Int64
	refused atomic.Uint64 // frames that the machine did not take
	stop    chan struct{}
	ended   sync.WaitGroup
	failure atomic.Pointer[error]

	mu  sync.Mutex
	got received
}

// streamOptions describe a stream; zero fields take a sensible value.
type streamOptions struct {
	src, dst netip.Addr
	// transport of the packets, by the settings that public descriptions give; those of a multipath one have a source port each.
	transport roce.Transport
	rate      int // packets a second
	data      int // octets of payload
	first     roce.PSN
	swap      int // each packet with a multiple of swap as its number leaves behind the three after it; 0: none
}

// received is what the receiver saw.
type received struct {
	packets  int // of the stream
	distinct int
	order    int // packets behind a higher PSN
	twice    int
	corrupt  int
	dropped  uint64 // frames that the receiver itself lost
	newest   int
	seen     []bool
	ecn      [4]int   // packets by their ECN field
	classes  [256]int // and by the octet of DSCP and ECN
}

const (
	streamQPN  = 0x4711
	streamRate = 20_000
	streamSeed = 99
	streamTail = 64 << 10 // frames that may wait for the receiver

	multipathHeaders = 24 // octets of extension headers, whose content nobody between the hosts reads
)

// streamTransports are the settings by which domains name the transports of streams.
var streamTransports = roce.Transports{
	VeRoCE: roce.VeRoCESettings{Enabled: true, Port: roce.VeRoCEPort}, MRC: roce.MRCSettings{Enabled: true},
}

// stream starts a stream. The receiver is there before the first packet.
func (w *world) stream(o streamOptions) *stream {
	w.t.Helper()
	if !o.src.IsValid() {
		o.src, o.dst = topology.HostA4, topology.HostB4
	}
	if o.rate == 0 {
		o.rate = streamRate
	}
	if o.data == 0 {
		o.data = 1024
	}
	s := &stream{w: w, o: o, stop: make(chan struct{})}
	s.got.newest = -1
	var to net.HardwareAddr
	w.do(w.lab.GwA, func() error {
		access, err := net.InterfaceByName(topology.Access)
		if err == nil {
			to = access.HardwareAddr
		}
		return err
	})
	var sender *raw.Sender
	var ring *raw.Ring
	w.do(w.lab.HostA, func() (err error) {
		sender, err = openSender(topology.Device)
		return err
	})
	w.do(w.lab.HostB, func() (err error) {
		device, err := net.InterfaceByName(topology.Device)
		if err != nil {
			return err
		}
		ring, err = raw.OpenRing(device.Index, o.data+100, streamTail, nil)
		return err
	})
	model := frames.RoCE{
		Headers: frames.Headers{SrcMAC: frames.MAC(topology.MACA), DstMAC: frames.MAC(to), Src: o.src, Dst: o.dst, TOS: 2},
		Opcode:  s.opcode(), QPN: streamQPN,
	}
	if o.transport.Multipath() {
		model.Extension = make([]byte, multipathHeaders)
	}
	if o.transport == roce.VeRoCE {
		model.DstPort = roce.VeRoCEPort
	}
	stopped := make(chan struct{})
	s.ended.Add(2)
	go func() { defer s.ended.Done(); defer sender.Close(); s.send(sender, model) }()
	go func() { defer s.ended.Done(); defer ring.Close(); s.receive(ring, stopped) }()
	w.t.Cleanup(func() { s.halt(); close(stopped); s.ended.Wait() })
	return s
}

func openSender(device string) (*raw.Sender, error) {
	i, err := net.InterfaceByName(device)
	if err != nil {
		return nil, err
	}
	return raw.OpenSender(i.Index)
}

// likeHardware makes the calling thread one that does not wait for ordinary programs, and keeps it on one processor: a network card does not reorder its
// packets, and a thread that moves does.
func likeHardware() error {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(0)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return err
	}
	return unix.Setpriority(unix.PRIO_PROCESS, 0, -19)
}

// send sends at the stream's rate. It catches up after a delay, so that the number of packets depends on time alone.
func (s *stream) send(out *raw.Sender, model frames.RoCE) {
	if err := likeHardware(); err != nil {
		s.failure.Store(&err)
		return
	}
	const batch = 16
	start := time.Now()
	data := make([]byte, s.o.data)
	for n := 0; ; {
		select {
		case <-s.stop:
			s.refused.Store(out.Dropped)
			return
		default:
		}
		due := int(time.Since(start).Seconds() * float64(s.o.rate))
		if due-n < batch {
			time.Sleep(200 * time.Microsecond)
			continue
		}
		for range batch {
			i := s.number(n)
			rc.Fill(data, streamSeed, uint64(i), 0)
			p := model
			p.PSN, p.ID, p.Data, p.SrcPort = uint32(s.o.first.Add(i)), uint16(7*i), data, s.sourcePort(i)
			out.Queue(p.Frame())
			n++
		}
		out.Flush()
		s.sent.Store(int64(n))
	}
}

func (s *stream) opcode() roce.Opcode {
	if s.o.transport == roce.MRC {
		return roce.MRCWriteOnly
	}
	return roce.SendOnly
}

// sourcePort is that of a packet: a path for each packet of a multipath transport.
func (s *stream) sourcePort(i int) uint16 {
	if s.o.transport.Multipath() {
		return 0xc000 | uint16(i*2654435761>>8)&0x3fff
	}
	return 0xc000
}

// number is that of the packet which leaves as the nth. A batch begins with a multiple of 16, so that packets change places within one.
func (s *stream) number(n int) int {
	if s.o.swap == 0 {
		return n
	}
	switch at := n % s.o.swap; {
	case at < 3:
		return n + 1
	case at == 3:
		return n - 3
	}
	return n
}

// receive notes what arrives.
func (s *stream) receive(in *raw.Ring, stopped <-chan struct{}) {
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, -19); err != nil {
		s.failure.Store(&err)
		return
	}
	for {
		f, ok := in.Next(time.Now())
		if !ok {
			select {
			case <-stopped:
				return
			default:
				time.Sleep(time.Millisecond)
			}
			continue
		}
		s.note(f.Data)
		in.Release(f.Slot)
		s.mu.Lock()
		s.got.dropped = in.Dropped()
		s.mu.Unlock()
	}
}

func (s *stream) note(frame []byte) {
	p, reason := streamTransports.Parse(frame)
	if reason != roce.OK || p.Transport() != s.o.transport || p.QPN() != streamQPN || p.Src() != s.o.src || p.Dst() != s.o.dst {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &s.got
	g.packets++
	i := p.PSN().Sub(s.o.first)
	data := p.Data()
	if s.o.transport.Multipath() {
		const bth, icrc = 12, 4
		data = p.P()[bth+multipathHeaders : len(p.P())-icrc]
	}
	if i < 0 || p.Opcode() != s.opcode() || p.SrcPort() != s.sourcePort(i) || p.ID() != uint16(7*i) || !roce.CheckICRC(&p) ||
		rc.Differing(data, streamSeed, uint64(i)) != 0 || len(data) != s.o.data {
		g.corrupt++
		return
	}
	for len(g.seen) <= i {
		g.seen = append(g.seen, make([]bool, 1<<16)...)
	}
	switch {
	case g.seen[i]:
		g.twice++
		return
	case i < g.newest:
		g.order++
	}
	g.seen[i] = true
	g.ecn[p.ECN()]++
	g.classes[p.TOS()]++
	g.distinct++
	g.newest = max(g.newest, i)
}

func (s *stream) received() received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got
}

func (s *stream) halt() {
	select {
	case <-s.stop:
	default:
		close(s.stop)
	}
}

// moves waits until n more packets have arrived: traffic goes on.
func (s *stream) moves(n int) {
	s.w.t.Helper()
	from := s.received().distinct
	s.w.eventually(fmt.Sprintf("%d packets of the stream", n), func() bool { return s.received().distinct >= from+n })
}

// end stops the sender, waits until nothing more arrives, and returns how many packets were sent and what arrived of them.
func (s *stream) end() (sent int, got received) {
	s.w.t.Helper()
	s.halt()
	for last, quiet := -1, 0; quiet < 10; time.Sleep(50 * time.Millisecond) {
		if n := s.received().packets; n != last {
			last, quiet = n, 0
		} else {
			quiet++
		}
	}
	if err := s.failure.Load(); err != nil {
		s.w.t.Fatal(*err)
	}
	sent, got = int(s.sent.Load()), s.received()
	if n := s.refused.Load() + got.dropped; n > 0 {
		s.w.t.Errorf("the machine lost %d frames of the stream by itself: the test says nothing", n)
	}
	if got.corrupt > 0 {
		s.w.t.Errorf("%d corrupt packets", got.corrupt)
	}
	return sent, got
}

// missing lists the first gaps in what arrived.
func (g *received) missing(sent int) (gaps []string) {
	for i := 0; i < sent && len(gaps) < 10; i++ {
		if i < len(g.seen) && g.seen[i] {
			continue
		}
		from := i
		for i+1 < sent && (i+1 >= len(g.seen) || !g.seen[i+1]) {
			i++
		}
		gaps = append(gaps, fmt.Sprintf("%d-%d", from, i))
	}
	return gaps
}

// discard takes the ports of the transports in a namespace, so that its kernel does not answer that nobody is there.
func (w *world) discard(n *topology.Namespace) {
	w.t.Helper()
	w.do(n, func() error {
		for _, at := range []struct {
			network string
			port    int
		}{{"udp4", roce.Port}, {"udp6", roce.Port}, {"udp4", roce.VeRoCEPort}, {"udp6", roce.VeRoCEPort}} {
			config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
				return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) })
			}}
			c, err := config.ListenPacket(w.t.Context(), at.network, fmt.Sprintf(":%d", at.port))
			if err != nil {
				return err
			}
			w.t.Cleanup(func() { _ = c.Close() })
		}
		return nil
	})
}
