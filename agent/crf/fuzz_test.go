// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// A list of operations runs against a flow between a kernel and a receiver; a naive oracle that knows every copy ever made judges
// what comes out. With the digest, every restored packet must be the first copy, whatever came in whatever order.

// operation is one byte; its low bits choose, the next bytes are arguments.
const (
	opNext      = iota // the next new packets arrive
	opLose             // the next new packets are lost
	opOlder            // a first copy of an older PSN arrives (again)
	opOther            // another copy of an older PSN arrives: a retransmission
	opRepair           // a symbol of a block
	opCopy             // a Source Copy
	opRetx             // a coded retransmission
	opForged           // a REPAIR with a few octets changed
	opTime             // time passes
	opFailOpen         // the kernel fails open for some packets
	opHandBack         // the kernel does not take the flow back for a while
	opPool             // the pool runs dry, or is filled up
	opConfigure        // another configuration
	opParams           // other parameters
	opJump             // PSNs jump ahead
	opDamaged          // a packet with a wrong invariant CRC arrives
	operations
)

const fuzzK = 8

// oracle is what must be true, reckoned without the machine's own ideas.
type oracle struct {
	*world
	next     int              // the next new PSN
	copies   map[string]*sent // every frame that arrived, by content
	restored map[int]int      // restorations of a first copy, by PSN
	seen     int              // of out
	highest  int              // highest PSN delivered so far
	opened   int              // times that the kernel failed open
	lost     int              // the last PSN lost
	other    uint16           // Identification of the next other copy
}

// sent is one frame that arrived.
type sent struct {
	psn     int
	held    int // times it came held
	out     int // times it came out of an Inject
	at      time.Duration
	highest int // highest PSN delivered when it came
	opened  int
	first   bool // no copy of the PSN had come before
}

// variant says what flow the operations run against.
type variant struct {
	Delivery
	v6   bool
	kind wire.FlowKind
}

func variantOf(b byte) variant {
	v := variant{v6: b&4 != 0}
	if b&3 == 0 {
		v.Delivery = Immediate
	}
	switch b >> 3 & 7 {
	case 1, 4:
		v.kind = wire.KindRoCEv2Response
	case 2:
		v.kind = wire.KindMRC
	case 3:
		v.kind = wire.KindVeRoCE
	case 5:
		v.kind = wire.KindVeRoCEResponse
	default:
		v.kind = wire.KindRoCEv2
	}
	return v
}

func newOracle(t testing.TB, v variant) *oracle {
	opts := []option{with(func(p *Params) {
		p.Delivery, p.MaxHold, p.HoldBytes, p.MaxOpenBlocks = v.Delivery, 25*time.Millisecond, 150<<10, 6
	})}
	if v.v6 {
		opts = append(opts, ipv6)
	}
	w := configured(t, fec.Cauchy, fuzzK, 3, append(opts, ofKind(v.kind))...)
	w.src.csum = v.kind != wire.KindRoCEv2
	if v.kind == wire.KindRoCEv2Response {
		w.src.opcode = func(p roce.PSN) roce.Opcode {
			return []roce.Opcode{roce.ReadResponseFirst, roce.ReadResponseMiddle, roce.ReadResponseMiddle, roce.ReadResponseLast, roce.ReadResponseOnly}[p%5]
		}
	}
	w.src.data = func(p roce.PSN) int { return 8 + int(p*7)%16*4 }
	return &oracle{world: w, next: 1000, copies: map[string]*sent{}, restored: map[int]int{}, highest: -1, other: 1, lost: 1000}
}

// come lets a frame arrive and notes it.
func (o *oracle) come(psn int, frame []byte, first bool) {
	c := o.copies[string(frame)]
	if c == nil {
		c = &sent{psn: psn}
		o.copies[string(frame)] = c
	}
	o.catchUp() // what Poll released
	before := o.k.held
	failOpen := o.k.failOpen
	c.at, c.highest, c.opened, c.first = o.now, o.highest, o.opened, first
	if p, _ := o.rules.Parse(frame); true {
		k := o.k
		if gaveUp, _ := k.judge(&p, testMTU); gaveUp {
			c.held++
		}
	}
	o.arrive(frame)
	if failOpen {
		o.opened++
	}
	if o.k.held-before > 1 {
		o.t.Fatal("the kernel counts wrong")
	}
	o.catchUp()
}

// catchUp judges what came out since the last call.
func (o *oracle) catchUp() {
	for ; o.seen < len(o.out); o.seen++ {
		d := o.out[o.seen]
		psn := int(d.psn)
		if !d.kernel {
			o.injected(psn, d)
		}
		if p, _ := o.rules.Parse(d.frame); roce.CheckICRC(&p) { // the receiver takes no notice of damaged ones
			o.highest = max(o.highest, psn)
		}
	}
}

func (o *oracle) injected(psn int, d delivered) {
	first := o.src.frames[d.psn]
	c := o.copies[string(d.frame)]
	if c == nil || c.out == c.held {
		// No held copy with these octets waits: it was restored. It must be the first copy, and that only once for each time
		// that it was not there.
		if !bytes.Equal(d.frame, first) {
			o.t.Fatalf("PSN %d came out with octets that nobody sent:\n%x\n%x", psn, d.frame, first)
		}
		o.restored[psn]++
		return
	}
	c.out++
	if o.p.Delivery == Immediate {
		return
	}
	if wait := d.at - c.at; wait > o.p.MaxHold {
		o.t.Fatalf("PSN %d held for %v", psn, wait)
	}
	if c.first && c.held == 1 && o.highest > psn && c.highest < psn && c.opened == o.opened {
		o.t.Fatalf("PSN %d was overtaken by %d while it waited", psn, o.highest)
	}
}

// finish ends the flow and settles the accounts.
func (o *oracle) finish() {
	o.wait(3 * time.Second)
	if s := o.f.Stats(); s.Holding != 0 || s.Missing != 0 || s.OpenBlocks != 0 {
		o.t.Fatalf("after a long time: %+v", *s)
	}
	o.f.Close(o.now, wire.CloseUnspecified, &o.acts)
	o.take()
	o.catchUp()
	for frame, c := range o.copies {
		if c.out != c.held {
			o.t.Fatalf("PSN %d: copy held %d times, released %d times (%x)", c.psn, c.held, c.out, frame[:50])
		}
	}
	if n := o.env.Pool.InUse(); n != 0 || o.f.cells != 0 {
		o.t.Fatalf("%d octets, %d cells left", n, o.f.cells)
	}
	if o.f.HeldCount() != o.k.held {
		o.t.Fatalf("counted %d held packets, the kernel %d", o.f.HeldCount(), o.k.held)
	}
	restored := 0
	for _, n := range o.restored {
		restored += n
	}
	if uint64(restored) != o.f.stats.Restored {
		o.t.Fatalf("%d restored packets came out, %d were counted", restored, o.f.stats.Restored)
	}
}

// bounded checks the flow's memory.
func (o *oracle) bounded() {
	if m := o.f.memory(); m > o.f.params.HoldBytes+cellOctets(o.f.widest) {
		o.t.Fatalf("%d octets in use, the bound is %d", m, o.f.params.HoldBytes)
	}
}

// run does operations until there are no more bytes.
func (o *oracle) run(ops []byte) {
	arg := func() int {
		if len(ops) == 0 {
			return 0
		}
		b := ops[0]
		ops = ops[1:]
		return int(b)
	}
	for len(ops) > 0 {
		o.do(arg()%operations, arg)
		check(o.t, o.f)
		o.bounded()
		if d := o.f.NextDeadline(); o.f.hold.waiting > 0 && d > o.now+o.f.params.MaxHold {
			o.t.Fatalf("packets wait, and the next deadline is %v ahead", d-o.now)
		}
	}
	o.k.failOpen, o.noHand = false, false
	o.finish()
}

func (o *oracle) do(op int, arg func() int) {
	older := func() int { return o.next - 1 - arg()%40 }
	block := func() int { // of the last loss, or another recent one
		if n := arg(); n%4 == 0 {
			return (o.next - 1 - n%48) / fuzzK * fuzzK
		}
		return o.lost / fuzzK * fuzzK
	}
	switch op {
	case opNext:
		for range 1 + arg()%12 {
			o.come(o.next, o.src.frame(roce.PSN(o.next)), true)
			o.next++
		}
	case opLose:
		for range 1 + arg()%4 {
			o.src.frame(roce.PSN(o.next))
			o.lost = o.next
			o.next++
		}
	case opOlder:
		p := older()
		frame := o.src.frame(roce.PSN(p))
		o.come(p, frame, o.copies[string(frame)] == nil)
	case opOther:
		p := older()
		frame := o.src.copy(roce.PSN(p), 0x8000+o.other, o.other%2 == 0, o.src.data(roce.PSN(p)))
		o.other++
		o.come(p, frame, false)
	case opRepair:
		first, index := block(), arg()
		for i := range 1 + index>>4&3 {
			m := o.src.repair(first, fuzzK, (index+i)%6)
			m.Last = index&8 != 0
			o.repair(m)
		}
	case opCopy:
		o.repair(o.src.sourceCopy(block(), fuzzK, arg()%fuzzK))
	case opRetx:
		L := fec.Bitmap{}
		first := block()
		for j := range fuzzK {
			if !o.delivered(first + j) {
				L.Set(j)
			}
		}
		if !L.Empty() {
			o.repair(o.src.retx(first, fuzzK, 6+arg()%16, L))
		}
	case opForged:
		m := o.src.repair(block(), fuzzK, arg()%8)
		o.spoil(&m, arg)
		o.repair(m)
	case opTime:
		d := time.Duration(arg()) * 50 * time.Microsecond
		if arg()%8 == 0 {
			d *= 30
		}
		o.wait(d)
	case opFailOpen:
		o.k.failOpen = arg()%4 == 0
	case opHandBack:
		o.noHand = arg()%2 == 0
	case opPool:
		o.env.Pool.SetLimit([]int64{0, 64 << 10, 64 << 20, 64 << 20}[arg()%4])
	case opConfigure:
		if o.f.state == Closed { // after 30 s of silence
			return
		}
		o.configure(uint8(arg()%4), fec.Cauchy, 8, 3, testT)
	case opParams:
		p := o.p
		p.HoldBytes = int64(100+arg()) << 10
		p.MaxHold = time.Duration(1+arg()%50) * time.Millisecond
		if p.MaxHold > o.p.MaxHold { // what waits may have had less time before
			p.MaxHold = o.p.MaxHold
		}
		o.f.SetParams(o.now, &p, &o.acts)
		o.take()
		o.p.HoldBytes = p.HoldBytes
	case opJump:
		o.next += fuzzK * (1 + arg()%8*arg()%200)
	case opDamaged:
		p := older()
		frame := append([]byte(nil), o.src.frame(roce.PSN(p))...)
		frame[len(frame)-5-arg()%8] ^= byte(1 + arg()%255)
		o.come(p, frame, false)
	}
	o.catchUp()
}

func (o *oracle) delivered(psn int) bool {
	for _, d := range o.out {
		if int(d.psn) == psn {
			return true
		}
	}
	return false
}

// spoil changes something that parses all the same.
func (o *oracle) spoil(m *wire.Repair, arg func() int) {
	switch arg() % 7 {
	case 0:
		m.Symbol[arg()%testT] ^= byte(1 + arg()%255)
	case 1:
		m.Digest ^= 1 << (arg() % 64)
	case 2:
		m.Present.Clear(arg() % 8)
	case 3:
		m.K = uint8(1 + arg()%8)
		m.Present = m.Present.And(fec.Full(int(m.K)))
	case 4:
		m.Start = m.Start.Add(arg()%16 - 8)
	case 5:
		m.Index = uint8(arg())
	case 6:
		m.Retx, m.Lost = true, fec.Bitmap{uint64(arg()) << 56}
	}
}

func runOperations(t testing.TB, ops []byte) {
	if len(ops) == 0 {
		return
	}
	newOracle(t, variantOf(ops[0])).run(ops[1:])
}

func FuzzFlow(f *testing.F) {
	f.Add([]byte{1, opNext, 8, opLose, 0, opNext, 12, opRepair, 9, 0, opRepair, 9, 1, opTime, 200, 1})
	f.Add([]byte{1, opNext, 8, opLose, 3, opNext, 12, opTime, 255, 0, opOther, 14, opRepair, 9, 16, opRepair, 9, 2})
	f.Add([]byte{0, opNext, 8, opLose, 3, opNext, 12, opTime, 100, 1, opOther, 14, opRepair, 9, 0, opRetx, 9, 1, opRetx, 9, 2})
	f.Add([]byte{1, opNext, 3, opLose, 0, opNext, 5, opFailOpen, 0, opNext, 3, opFailOpen, 1, opNext, 8, opHandBack, 0, opLose, 1, opNext, 9, opOlder, 8})
	f.Add([]byte{2, opNext, 3, opLose, 1, opNext, 11, opPool, 0, opNext, 5, opPool, 2, opNext, 8, opForged, 12, 1, 0, 5, 5, opCopy, 12, 3, opCopy, 12, 4})
	f.Add([]byte{3, opNext, 3, opJump, 3, 5, opNext, 11, opParams, 0, 3, opLose, 2, opNext, 9, opConfigure, 2, opDamaged, 4, 3, 7, opTime, 255, 8})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 400 {
			ops = ops[:400]
		}
		runOperations(t, ops)
	})
}

// The same with random lists, in every test run.
func TestRandomOperations(t *testing.T) {
	n := 400
	if testing.Short() {
		n = 60
	}
	restored := uint64(0)
	for seed := range n {
		r := rand.New(rand.NewPCG(uint64(seed), 99))
		ops := make([]byte, 50+r.IntN(600))
		for i := range ops {
			ops[i] = byte(r.Uint32())
		}
		// Mostly what happens most.
		for i := 1; i < len(ops); i++ {
			if r.IntN(3) == 0 {
				ops[i] = []byte{opNext, opNext, opLose, opRepair, opRepair, opTime}[r.IntN(6)]
			}
		}
		func() {
			defer func() {
				if t.Failed() {
					fmt.Printf("seed %d\n", seed)
				}
			}()
			o := newOracle(t, variantOf(byte(seed)))
			o.run(ops)
			restored += o.f.stats.Restored
		}()
	}
	if restored < uint64(n) {
		t.Errorf("only %d packets restored in %d lists: the test tests nothing", restored, n)
	}
	t.Logf("%d packets restored", restored)
}
