// SPDX-License-Identifier: Apache-2.0

package system

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/test/lab/raw"
	"crem.dev/crem/test/lab/topology"
)

// agentFlow is a flow as an agent describes it.
type agentFlow = agentapi.Flow

// message is a CREM message as it was seen on the WAN.
type message struct {
	from, to netip.Addr
	toWest   bool   // it was sent by gateway A
	payload  []byte // of UDP
	frame    []byte
}

// sniffer copies the CREM messages that the gateways send into the WAN.
type sniffer struct {
	done  chan struct{}
	ended sync.WaitGroup
	mu    sync.Mutex
	list  []message
}

const mostSniffed = 200_000

// sniff begins to copy CREM messages, of both directions.
func (w *world) sniff() *sniffer {
	w.t.Helper()
	s := &sniffer{done: make(chan struct{})}
	code, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0x0800, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0x86dd, SkipTrue: 7},
		bpf.LoadAbsolute{Off: 20, Size: 1},
		bpf.Jump{Skip: 1},
		bpf.LoadAbsolute{Off: 23, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 3},
		bpf.LoadAbsolute{Off: 36, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: cremPort, SkipTrue: 2},
		bpf.LoadAbsolute{Off: 56, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: cremPort, SkipTrue: 1},
		bpf.RetConstant{Val: 0x40000},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	filter := make([]unix.SockFilter, len(code))
	for i, f := range code {
		filter[i] = unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	for _, name := range []string{topology.WANA, topology.WANB} {
		var ring *raw.Ring
		w.do(w.lab.WAN, func() error {
			device, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			ring, err = raw.OpenRing(device.Index, device.MTU, 1024, filter)
			return err
		})
		s.ended.Add(1)
		go func() {
			defer s.ended.Done()
			defer ring.Close()
			s.run(ring, name == topology.WANA)
		}()
	}
	w.t.Cleanup(func() { s.stop() })
	return s
}

func (s *sniffer) run(ring *raw.Ring, toWest bool) {
	for {
		f, ok := ring.Next(time.Now())
		if !ok {
			select {
			case <-s.done:
				return
			default:
				time.Sleep(time.Millisecond)
			}
			continue
		}
		m := message{toWest: toWest, frame: append([]byte(nil), f.Data...)}
		ring.Release(f.Slot)
		if b := m.frame; b[12] == 0x08 {
			m.from, _ = netip.AddrFromSlice(b[26:30])
			m.to, _ = netip.AddrFromSlice(b[30:34])
			m.payload = b[42:]
		} else {
			m.from, _ = netip.AddrFromSlice(b[22:38])
			m.to, _ = netip.AddrFromSlice(b[38:54])
			m.payload = b[62:]
		}
		s.mu.Lock()
		if len(s.list) < mostSniffed {
			s.list = append(s.list, m)
		}
		s.mu.Unlock()
	}
}

// seen returns what was copied so far.
func (s *sniffer) seen() []message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list[:len(s.list):len(s.list)]
}

// stop ends the copying and returns everything.
func (s *sniffer) stop() []message {
	select {
	case <-s.done:
	default:
		close(s.done)
	}
	s.ended.Wait()
	return s.seen()
}
