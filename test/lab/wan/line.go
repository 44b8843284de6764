// SPDX-License-Identifier: Apache-2.0

package wan

import (
	"math"
	"math/rand/v2"
	"time"

	"crem.dev/crem/agent/ecn"
)

// Never is the deadline of an empty line.
const Never = time.Duration(math.MaxInt64)

// The draws. Each has a generator of its own, so that the n-th frame meets the same luck whatever the other settings and the timing are.
const (
	drawLoss = iota
	drawBurst
	drawReorder
	drawDuplicate
	drawMark
	drawJitter
	drawCREM
	draws
)

// Line is one direction of the path. It is not safe for concurrent use.
type Line struct {
	set     Settings
	draw    [draws]*rand.Rand
	limiter limiter
	burst   gilbert
	inBurst bool
	jitter  jitter
	marker  *ecn.Marker   // of a line with two thresholds
	full    bool          // the last frame that was dropped met a full queue
	last    time.Duration // when the last frame that kept its place is due
	flight  flight
	count   Counters
}

// NewLine returns an empty line with the given settings.
func NewLine(s Settings) (*Line, error) {
	l := &Line{}
	if err := l.Configure(s); err != nil {
		return nil, err
	}
	return l, nil
}

// Configure changes the settings. Frames on the line stay as they are due, counters go on, and the generators start anew from the seed. On an
// error nothing is changed.
func (l *Line) Configure(s Settings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	l.set, l.marker = s, nil
	for i := range l.draw {
		l.draw[i] = rand.New(rand.NewPCG(s.Seed, uint64(i)))
	}
	l.limiter.rate = s.Rate
	l.burst, l.inBurst = newGilbert(s.BurstLoss, s.BurstLength), false
	l.jitter = jitter{bound: time.Duration(s.Jitter)}
	if s.EarlyThreshold == 0 {
		return nil
	}
	var err error
	l.marker, err = ecn.NewMarker(ecn.MarkerConfig{T1: s.EarlyThreshold, T2: s.CEThreshold, Average: averageOver, Random: l.draw[drawMark].Uint32})
	return err
}

// Settings returns the present settings.
func (l *Line) Settings() Settings { return l.set }

// Counters returns the counters, which the line goes on changing.
func (l *Line) Counters() *Counters { return &l.count }

// Len returns how many frames, copies included, are on the line.
func (l *Line) Len() int { return len(l.flight.heap) }

// Offer gives the line a frame that arrived at now and returns how many copies of it will leave: 0 when it was dropped, which is then counted.
// The token comes back from Pop once a copy. The frame may be marked in place; the line does not keep it.
func (l *Line) Offer(now time.Duration, token uint32, frame []byte) int {
	class, n := Classify(frame, l.set.CREMPort), len(frame)
	l.count.In.add(class, n)
	backlog := l.limiter.backlog(now)
	if l.limiter.rate > 0 && backlog+int64(n) > l.set.Queue {
		l.count.DroppedFull.add(class, n)
		l.full = true
		return 0
	}
	l.full = false
	l.count.QueueMax = max(l.count.QueueMax, backlog+int64(n))
	if l.marker != nil {
		l.marker.Sample(now, backlog)
		l.tell(class, frame)
	} else {
		l.mark(class, frame, backlog)
	}
	due := l.limiter.send(now, n)

	exposed := !l.set.ProtectedOnly || class != Other
	if exposed && l.lose(class, n) {
		return 0
	}
	due += time.Duration(l.set.Delay) + l.jitter.at(due, l.draw[drawJitter])
	if exposed && chance(l.draw[drawReorder], l.set.Reorder) {
		l.count.Reordered.add(class, n)
		due += time.Duration(l.set.ReorderDelay)
	} else {
		due = max(due, l.last)
		l.last = due
	}
	copies := 1
	if exposed && chance(l.draw[drawDuplicate], l.set.Duplicate) {
		l.count.Duplicated.add(class, n)
		copies = 2
	}
	for range copies {
		l.flight.push(due, token, class, n)
	}
	return copies
}

// Reports reports whether what the line loses is to be reported.
func (l *Line) Reports() bool { return l.set.ReportTo.IsValid() }

// Full reports whether the frame that Offer was given last met a full queue.
func (l *Line) Full() bool { return l.full }

// mark sets CE on a frame that met a long queue or was drawn.
func (l *Line) mark(class Class, frame []byte, backlog int64) {
	long := l.set.CEThreshold > 0 && backlog > l.set.CEThreshold
	if (chance(l.draw[drawMark], l.set.CEProbability) || long) && MarkCE(frame) {
		l.count.Marked.add(class, len(frame))
	}
}

// averageOver is the time constant of the average queue.
const averageOver = 10 * time.Millisecond

// tell marks a frame by the two thresholds.
func (l *Line) tell(class Class, frame []byte) {
	n, ok := parseNetwork(frame)
	if !ok {
		return
	}
	had := n.codepoint(frame)
	c, level := l.marker.Mark(had)
	if c != had {
		n.setCodepoint(frame, c)
	}
	switch level {
	case ecn.LevelNone:
	case ecn.LevelEarly:
		l.count.Warned.add(class, len(frame))
	case ecn.LevelSevere:
		l.count.Marked.add(class, len(frame))
	}
}

// lose draws the two loss processes; a frame that both take counts as lost in a burst.
func (l *Line) lose(class Class, n int) bool {
	random := chance(l.draw[drawLoss], l.set.Loss)
	if class == CREM && chance(l.draw[drawCREM], l.set.CREMLoss) {
		random = true
	}
	burst := l.burst.lose(l.draw[drawBurst])
	if burst && !l.inBurst {
		l.count.Bursts++
	}
	l.inBurst = burst
	switch {
	case burst:
		l.count.LostBurst.add(class, n)
	case random:
		l.count.LostRandom.add(class, n)
	}
	return burst || random
}

// Next returns when the first frame is due, Never when there is none.
func (l *Line) Next() time.Duration {
	if len(l.flight.heap) == 0 {
		return Never
	}
	return l.flight.heap[0].due
}

// Pop takes the first frame off the line if it is due at now, and counts it as gone out.
func (l *Line) Pop(now time.Duration) (token uint32, ok bool) {
	if len(l.flight.heap) == 0 || l.flight.heap[0].due > now {
		return 0, false
	}
	e := l.flight.pop()
	l.count.left(e.class, int(e.length), now-e.due)
	return e.token, true
}
