// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// MarkerConfig is the two thresholds of a marking node. Queue lengths are octets.
type MarkerConfig struct {
	T1 int64 // early warning above this average
	T2 int64 // CE above this average
	T3 int64 // every packet CE from this average on; 0: twice T2
	// EarlyMax is the probability of an early warning at T2 and above, CEMax that of CE just below T3; 0: 1 and 0.5.
	EarlyMax, CEMax float64
	Average         time.Duration // time constant of the average, so that micro-bursts do not count
	Random          func() uint32 // uniform; of Mark alone
}

// check returns what makes the thresholds unusable.
func (c *MarkerConfig) check() error {
	probability := func(p float64) bool { return p > 0 && p <= 1 }
	switch {
	case c.T1 <= 0:
		return errors.New("wan: threshold T1 must be above 0")
	case c.T2 <= c.T1:
		return fmt.Errorf("wan: threshold T2 (%d octets) must be strictly greater than T1 (%d octets)", c.T2, c.T1)
	case c.T3 <= c.T2:
		return fmt.Errorf("wan: threshold T3 (%d octets) must be strictly greater than T2 (%d octets)", c.T3, c.T2)
	case !probability(c.EarlyMax) || !probability(c.CEMax):
		return errors.New("wan: marking probabilities must be above 0 and at most 1")
	case c.Average <= 0:
		return errors.New("wan: the time constant of the average queue must be above 0")
	}
	return nil
}

// MarkerStats is the counters of a marker, in packets.
type MarkerStats struct {
	Early, Severe uint64 // ECN-capable packets that were told of congestion
	NotECT        uint64 // packets that could not be told although the average was over T1
	Unmarked      uint64
}

// Marker is the two-threshold mechanism (WAN ECN, Two-Threshold ECN Mechanism) of one queue.
type Marker struct {
	config  MarkerConfig
	average float64       // octets
	queue   float64       // as of at, holds until the next sample
	at      time.Duration // of the last sample
	stats   MarkerStats
}

// NewMarker returns a marker with an empty queue. It returns an error unless 0 < T1 < T2 < T3 and the rest is usable.
func NewMarker(c MarkerConfig) (*Marker, error) {
	if c.T3 == 0 {
		c.T3 = 2 * c.T2
	}
	if c.EarlyMax == 0 {
		c.EarlyMax = 1
	}
	if c.CEMax == 0 {
		c.CEMax = 0.5
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return &Marker{config: c}, nil
}

// Stats returns the counters, alive as long as the marker.
func (m *Marker) Stats() *MarkerStats { return &m.stats }

// Average returns the average queue in octets as of the last sample.
func (m *Marker) Average() int64 { return int64(m.average) }

// Sample takes the queue length in octets that holds from now on. The average is exponential in time, not in packets: packets that come
// at once, or none for a while, change nothing about what it means. A time before the last sample counts as the last sample's.
func (m *Marker) Sample(now time.Duration, queue int64) {
	if now > m.at {
		m.average = m.queue + (m.average-m.queue)*math.Exp(-float64(now-m.at)/float64(m.config.Average))
	}
	m.at = max(m.at, now)
	m.queue = float64(queue)
}

// Chances returns the probability of any mark and that of CE, for who marks by them. Neither falls when the average grows.
func (m *Marker) Chances() (any, severe float64) {
	c := &m.config
	t1, t2, t3 := float64(c.T1), float64(c.T2), float64(c.T3)
	switch {
	case m.average <= t1:
		return 0, 0
	case m.average <= t2:
		return c.EarlyMax * (m.average - t1) / (t2 - t1), 0
	case m.average < t3:
		severe = c.CEMax * (m.average - t2) / (t3 - t2)
		return max(c.EarlyMax, severe), severe
	}
	return 1, 1
}

// Mark returns the outer ECN field that a packet leaves with, and the level that a CNP should tell of it. One draw decides both marks, so
// that the same draw never gives less at a longer queue. Not-ECT is never marked; what is CE stays CE, and was counted where it was set.
func (m *Marker) Mark(c Codepoint) (Codepoint, Level) {
	early, severe := m.Chances()
	c &= codepointMask
	if early == 0 || c == CE {
		m.stats.Unmarked++
		return c, LevelNone
	}
	if c == NotECT {
		m.stats.NotECT++
		return c, LevelNone
	}
	draw := float64(m.config.Random()) / (1 << 32)
	switch {
	case draw < severe:
		m.stats.Severe++
		return CE, LevelSevere
	case draw < early:
		m.stats.Early++
		return ECT1, LevelEarly
	}
	m.stats.Unmarked++
	return c, LevelNone
}
