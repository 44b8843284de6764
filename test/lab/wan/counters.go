// SPDX-License-Identifier: Apache-2.0

package wan

import (
	"encoding/json"
	"time"
)

// Tally counts frames and their octets per class.
type Tally [classes]struct{ Packets, Octets uint64 }

func (t *Tally) add(c Class, n int) {
	t[c].Packets++
	t[c].Octets += uint64(n)
}

// Total returns the frames of all classes.
func (t *Tally) Total() (packets uint64) {
	for i := range t {
		packets += t[i].Packets
	}
	return packets
}

type tallyJSON struct {
	Packets uint64 `json:"packets"`
	Octets  uint64 `json:"octets"`
}

// MarshalJSON writes one object per class that occurred.
func (t Tally) MarshalJSON() ([]byte, error) {
	m := map[string]tallyJSON{}
	for c := range classes {
		if t[c].Packets > 0 {
			m[c.String()] = tallyJSON(t[c])
		}
	}
	return json.Marshal(m)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (t *Tally) UnmarshalJSON(b []byte) error {
	m := map[string]tallyJSON{}
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	*t = Tally{}
	for c := range classes {
		t[c] = struct{ Packets, Octets uint64 }(m[c.String()])
	}
	return nil
}

// Counters of one direction. Every frame that came in went out, was dropped for exactly one reason, or is still on the line.
type Counters struct {
	In          Tally `json:"in"`
	Out         Tally `json:"out"` // copies made by duplication included
	DroppedFull Tally `json:"dropped_queue"`
	LostRandom  Tally `json:"lost_random"`
	LostBurst   Tally `json:"lost_burst"`
	Marked      Tally `json:"marked_ce"`
	Warned      Tally `json:"marked_early"` // ECT(1), of a line with two thresholds
	Reordered   Tally `json:"reordered"`
	Duplicated  Tally `json:"duplicated"`
	// Bursts counts runs of the Gilbert-Elliott process; lost_burst over bursts is the mean length seen.
	Bursts uint64 `json:"bursts"`
	// QueueMax is the longest queue a frame met, its own octets included.
	QueueMax int64 `json:"queue_max_octets"`
	// Late counts frames that left more than a millisecond after they were due, LateMax the worst: how far the host kept up.
	Late    uint64   `json:"late_1ms"`
	LateMax Duration `json:"late_max"`
}

func (c *Counters) left(class Class, n int, late time.Duration) {
	c.Out.add(class, n)
	if late > time.Millisecond {
		c.Late++
	}
	c.LateMax = max(c.LateMax, Duration(late))
}
