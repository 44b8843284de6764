// SPDX-License-Identifier: Apache-2.0

package multipath

import (
	"math"
	"testing"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/rc"
)

// arrival is a data packet for an end, and what is wrong with it.
type arrival struct {
	config Config // of who sends it
	psn    roce.PSN
	place  place
	flags  uint8
	damage func(frame []byte) // after the ICRC
}

func (a *arrival) frame() []byte {
	form := a.config.format()
	build := newBuilder(&a.config)
	ext := form.appendPlace(nil, &a.place)
	frame, _ := build.frame(make([]byte, 0, 300), form.opcode(true, true), a.flags, a.psn, ext, 64)
	frame = build.seal(frame)
	if a.damage != nil {
		a.damage(frame)
	}
	return frame
}

// remoteKeyAt is where the key is in a frame of IPv4.
func remoteKeyAt(t roce.Transport) int {
	at := roce.EthernetLen + 20 + udpLen + bthLen + methLen + 8
	if t == roce.VeRoCE {
		at += 2*wordLen - methLen
	}
	return at
}

// reseal makes the ICRC right again.
func reseal(frame []byte) {
	build := builder{model: make([]byte, roce.EthernetLen+20+udpLen)}
	build.seal(frame)
}

// Like a NIC an end takes nothing that is not for it, is damaged, or goes beyond the memory that the other end may write; it says which of them it was.
func TestWhatAnEndDoesNotTake(t *testing.T) {
	for _, transport := range []roce.Transport{roce.VeRoCE, roce.MRC} {
		other := roce.VeRoCE + roce.MRC - transport
		for name, c := range map[string]struct {
			change func(a *arrival)
			want   func(s *rc.Stats) bool
		}{
			"nothing wrong":         {func(*arrival) {}, func(s *rc.Stats) bool { return s.Responder.Executed == 1 && s.Responder.Messages == 1 && s.CE == 0 }},
			"congestion":            {func(a *arrival) { a.damage = func(b []byte) { b[roce.EthernetLen+1] |= 3 } }, func(s *rc.Stats) bool { return s.Responder.Executed == 1 && s.CE == 1 }},
			"another transport":     {func(a *arrival) { a.config.Transport = other }, func(s *rc.Stats) bool { return s.Strangers == 1 }},
			"another queue pair":    {func(a *arrival) { a.config.RC.Remote.QPN++ }, func(s *rc.Stats) bool { return s.Strangers == 1 }},
			"another host":          {func(a *arrival) { a.config.RC.Local.Addr = a.config.RC.Local.Addr.Next() }, func(s *rc.Stats) bool { return s.Strangers == 1 }},
			"damaged":               {func(a *arrival) { a.damage = func(b []byte) { b[len(b)-icrcLen-1] ^= 1 } }, func(s *rc.Stats) bool { return s.BadICRC == 1 }},
			"before the connection": {func(a *arrival) { a.psn = a.psn.Add(-1) }, func(s *rc.Stats) bool { return s.Responder == rc.Stats{}.Responder }},
			"another's memory": {func(a *arrival) {
				a.damage = func(b []byte) { b[remoteKeyAt(transport)] ^= 1; reseal(b) }
			}, func(s *rc.Stats) bool { return s.Responder.ProtocolErrors == 1 && s.Responder.Received == 0 }},
			"a message too far ahead": {func(a *arrival) { a.place.message = uint64(a.config.RC.Depth) }, func(s *rc.Stats) bool { return s.Responder.ProtocolErrors == 1 }},
			"a message too long":      {func(a *arrival) { a.place.size = a.config.RC.MaxMessage + 1 }, func(s *rc.Stats) bool { return s.Responder.ProtocolErrors == 1 }},
		} {
			to := config(transport, false)
			q, err := New(to)
			if err != nil {
				t.Fatal(err)
			}
			a := arrival{config: to, psn: to.RC.Remote.PSN, place: place{size: 64, first: true}}
			a.config.RC = to.RC.Reverse()
			c.change(&a)
			pkt, reason := settings.Parse(a.frame())
			if reason != roce.OK {
				t.Fatal(reason)
			}
			q.HandlePacket(0, &pkt)
			s := q.Stats()
			if !c.want(s) || s.Responder.Messages+s.Responder.ProtocolErrors+s.Strangers+s.BadICRC > 1 {
				t.Errorf("%v, %s: %+v", transport, name, s)
			}
		}
	}
}

// What asks for an acknowledgement, or says that it is sent again, is answered at once; anything else waits for more to answer.
func TestWhatIsAnsweredAtOnce(t *testing.T) {
	for _, transport := range []roce.Transport{roce.VeRoCE, roce.MRC} {
		to := config(transport, false)
		again := (&QP{cfg: to}).retransmission()
		for flags, answers := range map[uint8]int{0: 0, ackRequest: 1, again: 1} {
			q, err := New(to)
			if err != nil {
				t.Fatal(err)
			}
			a := arrival{config: to, psn: to.RC.Remote.PSN, place: place{size: 64, first: true}, flags: flags}
			a.config.RC = to.RC.Reverse()
			pkt, _ := settings.Parse(a.frame())
			q.HandlePacket(0, &pkt)
			batch := rc.NewBatch(8, to.FrameSize())
			if q.Poll(0, batch); len(batch.Frames()) != answers {
				t.Errorf("%v, flags %#x: %d answers", transport, flags, len(batch.Frames()))
			}
		}
	}
}

// Every frame has the next Identification, as a NIC counts them, and the largest range of MRC is what its field can say.
func TestIdentificationAndRange(t *testing.T) {
	c := config(roce.MRC, false)
	build := newBuilder(&c)
	for i := range 3 {
		frame, _ := build.frame(make([]byte, 0, 200), roce.MRCWriteOnly, 0, 1, nil, 4)
		pkt, reason := settings.Parse(build.seal(frame))
		if reason != roce.OK || int(pkt.ID()) != int(c.RC.Seed)+1+i {
			t.Errorf("frame %d has Identification %d (%v)", i, pkt.ID(), reason)
		}
	}
	c.RC.Window = 1 << 20
	if m, _, err := c.machine(); err != nil || m.Range != math.MaxUint8*rangeUnit {
		t.Errorf("range %d, %v", m.Range, err)
	}
}

// An end serves no READ that is none of its own kind, of other memory, or too long, and takes no response that answers nothing it has asked for: a READ that is
// under way stays as it is.
func TestWhatAReaderDoesNotTake(t *testing.T) {
	c := kinds(false)["veRoCE, READ"]
	request := func(change func(number *uint64, size *int), damage func([]byte)) func(*QP) []byte {
		return func(*QP) []byte {
			number, size := uint64(0), 100
			if change != nil {
				change(&number, &size)
			}
			from := c
			from.RC = c.RC.Reverse()
			build := newBuilder(&from)
			ext := c.format().(veroce).appendRequest(nil, number, size)
			frame, _ := build.frame(make([]byte, 0, 300), roce.ReadRequest, ackRequest, c.RC.Remote.PSN, ext, 0)
			if frame = build.seal(frame); damage != nil {
				damage(frame)
				reseal(frame)
			}
			return frame
		}
	}
	response := func(at place) func(*QP) []byte {
		return func(q *QP) []byte {
			q.Post(0, rc.Read, 64)
			a := arrival{config: c, psn: c.RC.Remote.PSN, place: at}
			a.config.RC = c.RC.Reverse()
			return a.frame()
		}
	}
	for name, x := range map[string]struct {
		operation rc.Op
		frame     func(*QP) []byte
		want      func(s *rc.Stats) bool
	}{
		"a request":                      {rc.Read, request(nil, nil), func(s *rc.Stats) bool { return s.Responder.Messages == 1 && s.Responder.ProtocolErrors == 0 }},
		"a request where WRITE is meant": {rc.Write, request(nil, nil), func(s *rc.Stats) bool { return s.Responder.ProtocolErrors == 1 }},
		"another message's memory":       {rc.Read, request(func(n *uint64, _ *int) { *n = 1 }, nil), func(s *rc.Stats) bool { return s.Responder.ProtocolErrors == 1 }},
		"more than a message":            {rc.Read, request(func(_ *uint64, size *int) { *size = 20_001 }, nil), func(s *rc.Stats) bool { return s.Responder.ProtocolErrors == 1 }},
		"nothing":                        {rc.Read, request(func(_ *uint64, size *int) { *size = 0 }, nil), func(s *rc.Stats) bool { return s.Responder.ProtocolErrors == 1 }},
		"another key": {rc.Read, request(nil, func(b []byte) { b[remoteKeyAt(roce.VeRoCE)] ^= 1 }), func(s *rc.Stats) bool {
			return s.Responder.ProtocolErrors == 1
		}},
		"a response":             {rc.Read, response(place{first: true}), func(s *rc.Stats) bool { return s.Requester.Completed == 1 && s.Responder.ProtocolErrors == 0 }},
		"of another request":     {rc.Read, response(place{message: 1, first: true}), func(s *rc.Stats) bool { return s.Responder.ProtocolErrors == 1 && s.Requester.Responses == 0 }},
		"of another place in it": {rc.Read, response(place{offset: 1024, first: true}), func(s *rc.Stats) bool { return s.Responder.ProtocolErrors == 1 && s.Requester.Responses == 0 }},
		"a response that was not asked for": {rc.Read, func(q *QP) []byte {
			a := arrival{config: c, psn: c.RC.Remote.PSN, place: place{first: true}}
			a.config.RC = c.RC.Reverse()
			return a.frame()
		}, func(s *rc.Stats) bool { return s.Responder.ProtocolErrors == 1 && s.Requester.Completed == 0 }},
	} {
		to := c
		to.Operation = x.operation
		q, err := New(to)
		if err != nil {
			t.Fatal(err)
		}
		pkt, reason := settings.Parse(x.frame(q))
		if reason != roce.OK {
			t.Fatal(name, reason)
		}
		q.Poll(0, rc.NewBatch(8, to.FrameSize()))
		q.HandlePacket(0, &pkt)
		if s := q.Stats(); !x.want(s) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
