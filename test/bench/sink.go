// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"crem.dev/crem/test/lab/topology"
)

// shortest is the least frame that the sink takes. What is shorter are CREM's control messages and RDMA acknowledgements, which go on.
const shortest = 256

// sink counts the frames that arrive at an interface and drops them: those of the stream by their length, and others (repair symbols).
type sink struct {
	counts  *ebpf.Map
	program *ebpf.Program
	link    link.Link
}

// openSink attaches a sink for frames of a length.
func openSink(ns *topology.Namespace, device string, length int) (*sink, error) {
	s := &sink{}
	err := ns.Do(func() error {
		index, err := deviceIndex(device)
		if err != nil {
			return err
		}
		if s.counts, err = ebpf.NewMap(&ebpf.MapSpec{Name: "bench_sink", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2}); err != nil {
			return err
		}
		if s.program, err = ebpf.NewProgram(sinkProgram(s.counts, length)); err != nil {
			return err
		}
		s.link, err = link.AttachXDP(link.XDPOptions{Interface: index, Program: s.program, Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		s.close()
		return nil, fmt.Errorf("sink on %s: %w", device, err)
	}
	return s, nil
}

// sinkProgram is an XDP program: short frames pass, all others are counted and dropped.
func sinkProgram(counts *ebpf.Map, length int) *ebpf.ProgramSpec {
	const drop, pass = 1, 2
	return &ebpf.ProgramSpec{
		Name: "bench_sink", Type: ebpf.XDP, License: "Apache-2.0", Flags: unix.BPF_F_XDP_HAS_FRAGS,
		Instructions: asm.Instructions{
			asm.FnXdpGetBuffLen.Call(), // octets of the whole frame
			asm.JLT.Imm(asm.R0, shortest, "pass"),
			asm.Mov.Imm(asm.R3, 0),
			asm.JEq.Imm(asm.R0, int32(length), "count"),
			asm.Mov.Imm(asm.R3, 1),
			asm.StoreMem(asm.RFP, -4, asm.R3, asm.Word).WithSymbol("count"),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, counts.FD()),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "drop"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, drop).WithSymbol("drop"),
			asm.Return(),
			asm.Mov.Imm(asm.R0, pass).WithSymbol("pass"),
			asm.Return(),
		},
	}
}

// count returns how many frames of the stream, and how many others, have come through.
func (s *sink) count() (stream, others uint64, err error) {
	if err = s.counts.Lookup(uint32(0), &stream); err == nil {
		err = s.counts.Lookup(uint32(1), &others)
	}
	return stream, others, err
}

func (s *sink) close() {
	if s.link != nil {
		_ = s.link.Close()
	}
	if s.program != nil {
		_ = s.program.Close()
	}
	if s.counts != nil {
		_ = s.counts.Close()
	}
}
