// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/netns"
)

// crowd runs the program from a thread for each frame, all at the same time, burst times each.
func crowd(t *testing.T, o *bpf.Objects, all [][]byte, burst int) {
	t.Helper()
	var threads sync.WaitGroup
	var ready atomic.Int32
	for _, frame := range all {
		threads.Go(func() {
			ready.Add(1)
			for ready.Load() < int32(len(all)) { // so that the bursts overlap
				runtime.Gosched()
			}
			o.Repeat(t, frame, burst)
		})
	}
	threads.Wait()
}

// Any CPU may write to any ring: no slot is lost, used twice or mixed, whoever comes together.
func TestRingFromEveryCPU(t *testing.T) {
	netns.NeedRoot(t)
	const threads, burst, rounds = 2, 2000, 100
	o, err := bpf.Load(bpf.Config{Workers: 1, SlotOctets: 1514, RingSlots: threads * burst})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	o.Beat(0, packet.Now()+time.Hour)
	var all [][]byte
	for i := range threads {
		p := frames.RoCE{Headers: frames.Headers{Src: hostA, Dst: hostB}, Opcode: roce.SendOnly, QPN: uint32(100 + i), PSN: 5, Data: bytes.Repeat([]byte{byte(i)}, 64*(i+1))}
		all = append(all, p.Frame())
		if index, err := o.RegisterFlow(keyOf(p), 0, 1024, packet.Immediate); err != nil || index != i {
			t.Fatal(index, err)
		}
	}
	ring := o.Ring(0)
	batch := make([]packet.Frame, 64)
	for range rounds {
		crowd(t, o, all, burst)
		if ring.Backlog() != threads*burst {
			t.Fatalf("backlog %d", ring.Backlog())
		}
		var got [threads]int
		for n := ring.Next(batch); n > 0; n = ring.Next(batch) {
			for _, f := range batch[:n] {
				if !bytes.Equal(f.Data, all[f.Flow]) {
					t.Fatalf("a frame of flow %d is mixed", f.Flow)
				}
				got[f.Flow]++
			}
		}
		ring.Release()
		if got != [threads]int{burst, burst} || ring.Missed() != 0 {
			t.Fatalf("frames %v, missed %d", got, ring.Missed())
		}
	}
}

// Section 6.1, rule 7: the count of held packets is that of the frames in the ring with the verdict held, whoever holds and
// hands back at the same time; so no packet is ever held without its copy, and no hand-back overtakes one.
func TestSection6_1_HeldCountNeverDiverges(t *testing.T) {
	netns.NeedRoot(t)
	const burst, rounds = 1000, 60
	o, err := bpf.Load(bpf.Config{Workers: 1, SlotOctets: 128, RingSlots: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	o.Beat(0, packet.Now()+time.Hour)
	gap := frames.RoCE{Headers: frames.Headers{Src: hostA, Dst: hostB}, Opcode: roce.SendOnly, QPN: 100, PSN: 50}
	index, err := o.RegisterFlow(keyOf(gap), 0, 1024, packet.InOrder)
	if err != nil {
		t.Fatal(err)
	}
	o.Word(index).Store(10) // every packet is ahead
	done := make(chan struct{})
	var held, back uint64
	ring := o.Ring(0)
	take := func() {
		var batch [32]packet.Frame
		for _, f := range batch[:ring.Next(batch[:])] {
			if f.Flags&packet.Held != 0 {
				held++
			}
		}
		ring.Release()
		if o.HandBack(index, held, 10, false) {
			back++
			if w := packet.Word(o.Word(index).Load()); !w.Hold() && w.Held() != held&packet.HeldMask {
				t.Errorf("handed back with %d held, %d taken", w.Held(), held)
			}
		}
	}
	go func() {
		defer close(done)
		for range rounds {
			for ring.Backlog() > ring.Size()/2 {
				runtime.Gosched()
			}
			crowd(t, o, [][]byte{gap.Frame(), gap.Frame()}, burst)
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		take()
	}
	for range 256 {
		take()
	}
	w := packet.Word(o.Word(index).Load())
	s, err := o.Stats()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d held, %d handed back; %d passed with the ring full, %d contended", held, back, s[bpf.OpenRingFull], s[bpf.OpenContended])
	if w.Held() != held || s[bpf.Held] != held || back == 0 {
		t.Errorf("word counts %d, statistics %d, the ring had %d; %d handed back", w.Held(), s[bpf.Held], held, back)
	}
}
