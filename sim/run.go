// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/endpoint"
	"crem.dev/crem/sim/gateway"
	"crem.dev/crem/sim/world"
)

// Run runs a scenario to its end. The error says what is wrong with the scenario; what goes wrong in it is in the Result.
func Run(s Scenario) (Result, error) {
	x, err := New(s)
	if err != nil {
		return Result{}, err
	}
	const portion = 1 << 16
	for x.Step(portion) {
		continue
	}
	return x.Result(), nil
}

// Simulation is a scenario that is running. It is not safe for concurrent use.
type Simulation struct {
	scenario Scenario
	ideal    time.Duration
	now      time.Duration

	sender   endpoint.Sender
	receiver endpoint.Receiver
	poster   endpoint.Poster // one of the two
	forth    *world.Pipe[gateway.Packet]
	back     *world.Pipe[gateway.Packet]
	near     *gateway.Sender   // nil without CREM
	far      *gateway.Receiver // nil without CREM
	bufs     gateway.Buffers
	paced    int64 // picoseconds until which the sender's pace keeps it from sending

	posted      int
	allowed     int           // transfers that may be posted by now
	postAt      time.Duration // of the next transfer, while fewer than Outstanding are under way
	completed   int
	completions []time.Duration
	before      Cost // of the warm-up
	began       time.Duration
	done        []endpoint.Completion
	got         []endpoint.Packet
	out         []gateway.Packet
}

// New prepares a scenario; the error says what is wrong with it.
func New(s Scenario) (*Simulation, error) {
	s, err := s.normal()
	if err != nil {
		return nil, err
	}
	x := &Simulation{scenario: s, allowed: s.Warmup + s.Messages}
	if x.forth, err = world.NewPipe[gateway.Packet](s.Link, s.Seed); err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	if x.back, err = world.NewPipe[gateway.Packet](*s.Back, s.Seed+1); err != nil {
		return nil, fmt.Errorf("way back: %w", err)
	}
	path := s.path()
	if x.sender, x.receiver, err = endpoint.New(s.Transport, path); err != nil {
		return nil, fmt.Errorf("transport: %w", err)
	}
	x.poster = endpoint.PosterOf(x.sender, x.receiver)
	x.ideal = s.ideal(path)
	if p := s.Protection; p.Send != nil {
		if p.Receive == nil {
			p.Receive = CREM().Receive
		}
		inFlight := min(int64(s.RTT()/path.Packet)+1, s.Packets()*int64(s.Outstanding))
		scale := gateway.NewScale(s.MTU, int(inFlight), s.Thin)
		x.near = gateway.NewSender(p.Send, scale, s.Transport.Operation, p.Memory, s.Seed, &x.bufs)
		x.far = gateway.NewReceiver(p.Receive, scale, s.Transport.Operation, p.Memory, &x.bufs)
	}
	return x, nil
}

// path is what the transport knows.
func (s *Scenario) path() endpoint.Path {
	_, wire := endpoint.Ideal(s.Transport, endpoint.Path{MTU: s.MTU}, int64(s.MTU))
	return endpoint.Path{MTU: s.MTU, RTT: s.RTT(), Packet: max(s.Link.Time(wire+int64(s.Link.Framing)), 1)}
}

// ideal is the time to send the packets of a transfer, and a round trip.
func (s *Scenario) ideal(p endpoint.Path) time.Duration {
	packets, wire := endpoint.Ideal(s.Transport, p, s.MessageOctets)
	return s.Link.Time(wire+packets*int64(s.Link.Framing)) + s.RTT()
}

// Step lets at most so many events happen. It is false when nothing is left to do: all transfers have completed, the connection has failed, or
// the time is up.
func (x *Simulation) Step(events int) bool {
	for range events {
		if x.over() {
			return false
		}
		at := max(x.NextDeadline(), x.now)
		if at > x.scenario.Until {
			x.now = x.scenario.Until
			return false
		}
		x.now = at
		x.happen()
	}
	return !x.over()
}

func (x *Simulation) over() bool {
	return x.completed == x.scenario.Warmup+x.scenario.Messages || x.failure() != ""
}

// failure is why the connection has failed, whichever end gave up.
func (x *Simulation) failure() string {
	if err := x.poster.Err(); err != "" {
		return err
	}
	return x.sender.Err()
}

// NextDeadline is when the next thing happens.
func (x *Simulation) NextDeadline() time.Duration {
	at := min(x.forth.NextDeadline(), x.back.NextDeadline(), x.leaves(), x.answers(), x.posts())
	if x.near != nil {
		at = min(at, x.near.NextDeadline(), x.far.NextDeadline())
	}
	return at
}

// leaves is when the sender wants to do something. A packet waits until the wire is free, or its pace lets it go.
func (x *Simulation) leaves() time.Duration {
	d := x.sender.NextDeadline()
	switch {
	case d == roce.Never:
		return roce.Never
	case x.scenario.Pace > 0:
		return max(d, time.Duration((x.paced+999)/1000))
	}
	return max(d, x.forth.Free())
}

// pace notes that a packet of so many octets has left.
func (x *Simulation) pace(octets int) {
	if x.scenario.Pace > 0 {
		nic := world.Link{Rate: x.scenario.Pace}
		x.paced = max(x.paced, int64(x.now)*1000-999) + nic.Picoseconds(int64(octets+x.scenario.Link.Framing))
	}
}

func (x *Simulation) answers() time.Duration {
	if d := x.receiver.NextDeadline(); d != roce.Never {
		return max(d, x.back.Free())
	}
	return roce.Never
}

// posts is when the next transfer is posted.
func (x *Simulation) posts() time.Duration {
	if x.posted-x.completed < x.scenario.Outstanding && x.posted < x.allowed {
		return x.postAt
	}
	return roce.Never
}

// happen does one thing that is due now. What arrives comes first.
func (x *Simulation) happen() {
	now := x.now
	if p, marks, ok := x.forth.Receive(now); ok {
		x.arrive(p, marks)
		return
	}
	if p, _, ok := x.back.Receive(now); ok {
		x.comeBack(p)
		return
	}
	switch {
	case x.posts() <= now:
		x.poster.Post(now, x.scenario.MessageOctets)
		x.posted++
	case x.near != nil && x.near.NextDeadline() <= now:
		x.near.Poll(now, &x.out)
		x.send(x.forth)
	case x.far != nil && x.far.NextDeadline() <= now:
		x.far.Poll(now, &x.got, &x.out)
		x.deliver()
	case x.answers() <= now:
		if p, ok := x.receiver.Next(now); ok {
			x.back.Send(now, gateway.Packet{Packet: p}, int(p.Octets), ecn.ECT0)
		}
	case x.leaves() <= now:
		x.leave()
	}
}

// leave lets the sender send a packet.
func (x *Simulation) leave() {
	t, ok := x.sender.Next(x.now)
	if !ok {
		return
	}
	p := gateway.Packet{Packet: t}
	x.pace(int(p.Octets))
	if x.near != nil {
		x.near.Leave(x.now, &p, &x.out)
	}
	x.forth.Send(x.now, p, int(p.Octets), ecn.ECT0)
	x.send(x.forth)
}

// send puts what a gateway sends on its way.
func (x *Simulation) send(pipe *world.Pipe[gateway.Packet]) {
	for i := range x.out {
		if p := &x.out[i]; pipe.Send(x.now, *p, int(p.Octets), ecn.ECT0) != world.OnItsWay {
			x.bufs.Release(p)
		}
	}
	x.out = x.out[:0]
}

// arrive takes a packet at the far end.
func (x *Simulation) arrive(p gateway.Packet, marks world.Marks) {
	p.Cut = marks.Trimmed
	switch {
	case x.far == nil:
		x.receiver.Handle(x.now, &p.Packet)
		x.collect()
		return
	case p.Message() && !p.Cut:
		x.far.ArriveMessage(x.now, &p, marks, &x.got, &x.out)
		x.bufs.Release(&p)
	case p.Message():
		x.bufs.Release(&p)
	default:
		x.far.Arrive(x.now, &p, marks, &x.got, &x.out)
	}
	x.deliver()
}

// deliver gives the receiver what the gateway passes on, and sends what the gateway says.
func (x *Simulation) deliver() {
	for i := range x.got {
		x.receiver.Handle(x.now, &x.got[i])
	}
	x.got = x.got[:0]
	x.collect()
	x.send(x.back)
}

// comeBack takes a packet at the near end.
func (x *Simulation) comeBack(p gateway.Packet) {
	if p.Message() {
		x.near.Arrive(x.now, &p, &x.out)
		x.bufs.Release(&p)
		x.send(x.forth)
		return
	}
	if x.near != nil {
		x.near.Answer(x.now, &p.Packet)
	}
	x.sender.Handle(x.now, &p.Packet)
	x.collect()
}

// collect takes what has completed.
func (x *Simulation) collect() {
	x.done = x.poster.Completed(x.done[:0])
	for _, d := range x.done {
		if x.completed++; x.completed > x.scenario.Warmup {
			x.completions = append(x.completions, d.Completed-d.Posted)
		} else if x.completed == x.scenario.Warmup {
			x.before, x.began = x.cost(), x.now
		}
		x.postAt = x.now + x.scenario.Pause
	}
}

// cost is what all transfers took.
func (x *Simulation) cost() Cost {
	s := x.sender.Stats()
	c := Cost{
		Sent: s.Sent, Needed: s.Needed, SentOctets: s.SentOctets, NeededOctets: s.NeededOctets, NAKs: s.NAKs, Timeouts: s.Timeouts,
		DataOctets: uint64(x.completed) * uint64(x.scenario.MessageOctets),
	}
	if r, ok := x.receiver.(endpoint.ReadRequester); ok {
		c.NAKs += r.Requests().NAKs
		c.Timeouts += r.Requests().Timeouts
	}
	if x.near != nil {
		near := x.near.Stats()
		c.SourceOctets, c.RepairOctets = near.SourceOctets, near.RepairOctets
	}
	return c
}

// Completed is how many transfers have completed, and how many there are in all, warm-up included.
func (x *Simulation) Completed() (done, all int) {
	return x.completed, x.scenario.Warmup + x.scenario.Messages
}

// Result is what has come of the scenario so far.
func (x *Simulation) Result() Result {
	r := Result{
		Done: x.completed == x.scenario.Warmup+x.scenario.Messages, Error: x.failure(), Now: x.now, Began: x.began, Ideal: x.ideal,
		Completions: x.completions,
		Cost:        x.cost().minus(x.before),
		Sender:      *x.sender.Stats(), Receiver: *x.receiver.Stats(), Link: *x.forth.Stats(), Back: *x.back.Stats(),
	}
	if x.near == nil {
		return r
	}
	near, far := x.near.Stats(), x.far.Stats()
	r.Peak = Memory{Sender: near.Peak, Receiver: far.Peak}
	r.Wrong = far.Wrong
	r.CSF = *x.near.Flow().Stats()
	if f := x.far.Flow(); f != nil {
		r.CRF = *f.Stats()
	}
	return r
}
