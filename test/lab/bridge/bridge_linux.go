// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"crem.dev/crem/test/lab/raw"
	"crem.dev/crem/test/lab/wan"
)

// Options of a bridge.
type Options struct {
	Interfaces [2]string
	Lines      [2]wan.Settings // Lines[0]: from Interfaces[0] to Interfaces[1]
	// Slots bounds the frames on the line and in its queue, in each direction; 0: 8192. More are dropped and counted as ring_dropped.
	Slots int
	// Nap is how late frames may leave, so that one wake-up serves several; 0: a fiftieth of the delay, and at most 250 us.
	Nap time.Duration
}

// Stats of one direction: what the line did and what the host failed to do. A test whose Host is not zero measured the host.
type Stats struct {
	wan.Counters
	RingDropped uint64 `json:"ring_dropped"` // frames that found no slot
	SendDropped uint64 `json:"send_dropped"` // frames that the interface refused
	Unfinished  uint64 `json:"unfinished"`   // frames that are not what a wire carries (offloads are on); passed on
	OnLine      int    `json:"on_line"`

	Reports Reports `json:"reports,omitzero"` // about what this direction lost
}

// direction is one way of the bridge.
type direction struct {
	ring       *raw.Ring
	send       *raw.Sender
	line       *wan.Line
	copies     []uint8 // of the frame in a slot that have not left
	batch      []uint32
	last       time.Duration // newest arrival
	unfinished uint64
	reporter   *pathReporter
}

// Bridge is a running or ready WAN. Only Do and Close may be called from other goroutines than Run's.
type Bridge struct {
	turns    uint64 // of Run
	way      [2]*direction
	epoch    time.Time
	nap      time.Duration
	commands chan func()
}

// Open prepares a bridge between two interfaces of the calling thread's network namespace. Frames that arrive from now on are emulated once Run runs.
func Open(o Options) (*Bridge, error) {
	if o.Slots == 0 {
		o.Slots = 8192
	}
	var ifs [2]*net.Interface
	for i, name := range o.Interfaces {
		f, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("interface %q: %w", name, err)
		}
		ifs[i] = f
	}
	b := &Bridge{epoch: time.Now(), nap: o.Nap, commands: make(chan func())}
	for i := range b.way {
		d := &direction{batch: make([]uint32, 0, sendBatch)}
		b.way[i] = d
		var err error
		if d.line, err = wan.NewLine(o.Lines[i]); err != nil {
			b.close()
			return nil, err
		}
		if d.ring, err = raw.OpenRing(ifs[i].Index, max(ifs[i].MTU, 1500), o.Slots, nil); err == nil {
			d.send, err = raw.OpenSender(ifs[1-i].Index)
		}
		if err != nil {
			b.close()
			return nil, fmt.Errorf("interface %q: %w", o.Interfaces[i], err)
		}
		d.copies = make([]uint8, d.ring.Slots())
	}
	for i, d := range b.way {
		d.reporter = newPathReporter(b.way[1-i].send, b.epoch)
	}
	return b, nil
}

func (b *Bridge) close() {
	for _, d := range b.way {
		if d != nil && d.ring != nil {
			_ = d.ring.Close()
		}
		if d != nil && d.send != nil {
			_ = d.send.Close()
		}
	}
}

const (
	sendBatch = 64
	// nap bounds how long the thread sleeps while frames are on the line if Options do not, sleep while there are none: then a frame wakes it.
	nap   = 250 * time.Microsecond
	sleep = 10 * time.Millisecond
	// grain is the part of the delay by which frames may leave late, so that one wake-up serves several.
	grain = 50
)

// Run moves frames until stop is closed, then frees everything and returns the totals. Frames still on the line are lost.
func (b *Bridge) Run(stop <-chan struct{}) [2]Stats {
	defer raw.Hardware()()
	defer b.close()
	for {
		select {
		case <-stop:
			return b.Stats()
		case f := <-b.commands:
			f()
		default:
		}
		b.turns++
		now := time.Now()
		work := 0
		for _, d := range b.way {
			work += d.receive(now, b.epoch)
		}
		for _, d := range b.way {
			work += d.leave(time.Since(b.epoch))
		}
		if work == 0 {
			b.wait()
		}
	}
}

// receive puts what has arrived on the line.
func (d *direction) receive(now, epoch time.Time) int {
	n := 0
	for ; n < sendBatch; n++ {
		f, ok := d.ring.Next(now)
		if !ok {
			break
		}
		if f.Unfinished {
			d.unfinished++
		}
		d.last = max(d.last, arrived(now, epoch, f.Age))
		d.copies[f.Slot] = uint8(d.line.Offer(d.last, f.Slot, f.Data))
		if d.line.Reports() {
			d.reporter.see(d.last, f.Data, d.copies[f.Slot] == 0, d.line)
		}
		if d.copies[f.Slot] == 0 {
			d.ring.Release(f.Slot)
		}
	}
	if d.line.Reports() {
		d.reporter.report(d.line)
	}
	return n
}

// arrived is when the kernel got a frame of an age reckoned from now. A frame that came after now did not come before it, however long the machine kept the
// bridge waiting since; nor does it come in the future, if the clock was set back.
func arrived(now, epoch time.Time, age time.Duration) time.Duration {
	at := now.Sub(epoch) - age
	if age < 0 {
		at = min(at, time.Since(epoch))
	}
	return at
}

// leave sends what is due.
func (d *direction) leave(now time.Duration) int {
	d.batch = d.batch[:0]
	for len(d.batch) < sendBatch {
		slot, ok := d.line.Pop(now)
		if !ok {
			break
		}
		d.send.Queue(d.ring.Data(slot))
		d.batch = append(d.batch, slot)
	}
	d.send.Flush()
	for _, slot := range d.batch {
		if d.copies[slot]--; d.copies[slot] == 0 {
			d.ring.Release(slot)
		}
	}
	return len(d.batch)
}

// wait sleeps until something is due, a frame arrives on a line that is empty or too short to hide a late wake-up, or it is time to look for commands.
func (b *Bridge) wait() {
	next := min(b.way[0].line.Next(), b.way[1].line.Next())
	pause := sleep
	if next != wan.Never {
		shortest := min(b.way[0].line.Settings().Delay, b.way[1].line.Settings().Delay)
		pause = min(max(next-time.Since(b.epoch), time.Duration(shortest)/grain, b.nap), max(nap, b.nap))
	}
	if pause <= 0 {
		return
	}
	ts := unix.NsecToTimespec(int64(pause))
	if next != wan.Never && b.way[0].long() && b.way[1].long() {
		_ = unix.Nanosleep(&ts, nil)
		return
	}
	fds := [2]unix.PollFd{{Fd: int32(b.way[0].ring.FD()), Events: unix.POLLIN}, {Fd: int32(b.way[1].ring.FD()), Events: unix.POLLIN}}
	_, _ = unix.Ppoll(fds[:], &ts, nil)
	for i := range fds {
		if fds[i].Revents&unix.POLLERR != 0 { // an interface is down or gone; until the error is read no wait lasts
			_, _ = unix.GetsockoptInt(int(fds[i].Fd), unix.SOL_SOCKET, unix.SO_ERROR)
		}
	}
}

// long says that frames stay on the line so long that nobody sees when in a nap they were taken in.
func (d *direction) long() bool { return time.Duration(d.line.Settings().Delay) > 2*nap }

// Do runs f between two batches of a bridge that is running, and waits for it. It is false, and f not run, if stopped is closed first.
func (b *Bridge) Do(stopped <-chan struct{}, f func()) bool {
	done := make(chan struct{})
	select {
	case b.commands <- func() { f(); close(done) }:
		<-done
		return true
	case <-stopped:
		return false
	}
}

// Line returns the line of a direction, for Do.
func (b *Bridge) Line(way int) *wan.Line { return b.way[way].line }

// Stats returns the totals of both directions, for Do.
func (b *Bridge) Stats() (s [2]Stats) {
	for i, d := range b.way {
		s[i] = Stats{
			Counters: *d.line.Counters(), RingDropped: d.ring.Dropped(), SendDropped: d.send.Dropped,
			Unfinished: d.unfinished, OnLine: d.line.Len(), Reports: d.reporter.stats,
		}
	}
	return s
}
