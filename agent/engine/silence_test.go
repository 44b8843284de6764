// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
	"testing"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/packet"
)

// silenceBench is a measuringBench whose other end tells only what hear says.
type silenceBench struct {
	*measuringBench
	n uint32
}

// period lets one pass in which so many packets go into the tunnel.
func (b *silenceBench) period(packets uint32) {
	b.n++
	if packets > 0 {
		b.enter(b.n-90, map[uint32]uint32{b.n: packets})
	}
	b.until(b.n)
	b.tick()
}

func (b *silenceBench) problem() string { return b.w.e.Overview().Tunnels[0].Measured.Problem }

func (b *silenceBench) hear() { b.hearsReadings(westGateway, b.n, readingOf(0, 0)) }

// RFC 9341 needs both measurement points: where packets go into a tunnel with a colour, and the other end tells nothing of them for a minute, the status
// says so, and the log once.
func TestRFC9341_AnEndThatDoesNotMeasureIsTold(t *testing.T) {
	const says = "write spec.wan.measurement: AlternateMarking in the domain of the other site too"
	for _, x := range []struct {
		name    string
		periods int // of silence
		packets func(i int) uint32
		told    bool
	}{
		{"a minute of packets", patience, func(int) uint32 { return 9 }, true},
		{"not quite", patience - 1, func(int) uint32 { return 9 }, false},
		{"no packets", 3 * patience, func(int) uint32 { return 0 }, false},
		{"packets at times", patience + 1, func(i int) uint32 { return 9 * uint32(i&1) }, false},
		{"packets at times, for longer", 2 * patience, func(i int) uint32 { return 9 * uint32(i&1) }, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			b := &silenceBench{newMeasuringBench(t), firstPeriod}
			b.period(9)
			b.hear()
			for range tellSilent { // as long as what was heard may be all that there is to say
				b.period(9)
			}
			for i := range x.periods {
				b.period(x.packets(i))
			}
			if got := strings.Contains(b.problem(), says); got != x.told || len(b.notices) > 1 || (len(b.notices) > 0) != x.told {
				t.Errorf("told %v, want %v: %q, %q", got, x.told, b.problem(), b.notices)
			}
		})
	}
}

// What the status says of a silent end is over as soon as it tells something, and where nothing goes to it any more.
func TestRFC9341_AnEndThatIsHeardAgain(t *testing.T) {
	b := &silenceBench{newMeasuringBench(t), firstPeriod}
	ended := tunnelFlow(leaving)
	ended.QPN++
	silent := func() {
		t.Helper()
		b.kernel.entered[ended] = countsOf(b.n-9, map[uint32]uint32{b.n: 9}) // changes nothing
		b.notices = nil
		for range tellSilent + patience {
			b.period(9)
		}
		for range 3 { // and stays
			b.period(0)
		}
		if b.problem() != faultSilent || len(b.notices) != 1 {
			t.Fatalf("%q, %q", b.problem(), b.notices)
		}
	}
	silent()
	b.hear()
	if got := b.problem(); got != "" {
		t.Errorf("heard: %q", got)
	}
	silent()
	b.ahead = -markingPeriod // what comes says what is wrong with it
	b.hear()
	if got := b.problem(); !strings.Contains(got, "clocks") || len(b.notices) != 2 {
		t.Errorf("heard, by another clock: %q, %q", got, b.notices)
	}
	b.ahead = 0
	silent()
	clear(b.kernel.entered) // they are forgotten
	for range 2 {
		b.period(0)
	}
	if got := b.problem(); got != "" {
		t.Errorf("nothing goes there: %q", got)
	}
	silent()
	b.measure(t, false)
	b.measure(t, true)
	if got := b.problem(); got != "" {
		t.Errorf("measured anew: %q", got)
	}
}

// Silence is of one tunnel: packets that go into another one do not count.
func TestRFC9341_SilenceIsOfOneTunnel(t *testing.T) {
	b := &silenceBench{newMeasuringBench(t), firstPeriod}
	other := bpf.Tunnel{MTU: 1}
	b.kernel.enteredBy = &other
	for range tellSilent + patience + 1 {
		b.period(9)
	}
	if got := b.problem(); got != "" {
		t.Errorf("%q", got)
	}
}

// The kernel's counts are looked through for that only while a tunnel that is measured is silent.
func TestRFC9341_LooksForSilenceAreFew(t *testing.T) {
	b := &silenceBench{newMeasuringBench(t), firstPeriod}
	for _, x := range b.w.e.tunnels.byEnds {
		b.w.e.tunnels.byEnds[packet.Ends{}] = &tunnel{Tunnel: bpf.Tunnel{MTU: 1, Local: x.Local, Remote: x.Remote}} // not measured
	}
	b.period(9)
	b.hear()
	b.kernel.looks = 0
	for range tellSilent {
		b.period(9)
	}
	if b.kernel.looks != 0 {
		t.Errorf("%d looks, and readings have come", b.kernel.looks)
	}
	b.period(9)
	if b.kernel.looks != 1 {
		t.Errorf("%d looks in a silent period", b.kernel.looks)
	}
}

// Every message counts for the limit of its period, whatever was silent before.
func TestRFC9341_HearingIsLimited(t *testing.T) {
	x := colouring{on: true, silent: patience, out: faultSilent}
	for i := range readingsTaken + 2 {
		if ok := x.hear(firstPeriod); ok != (i < readingsTaken) {
			t.Errorf("message %d: %v", i, ok)
		}
	}
	if !x.hear(firstPeriod+1) || x.silent != 0 || x.out != "" {
		t.Errorf("%+v", x)
	}
}
