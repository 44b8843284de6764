// SPDX-License-Identifier: Apache-2.0

// Package decode prints the packets of RDMA transports and the CREM messages of a capture, one line each: what `kubectl crem decode` shows.
//
// It reads pcap (also gzipped) and pcapng, with Ethernet, Linux cooked or raw IP frames, and says of each packet of a transport
// whether its invariant CRC is right, and why CREM would not protect it if it would not.
package decode

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"crem.dev/crem/agent/roce"
)

// Options says what to print and how.
type Options struct {
	// Port is the CREM port of the domain; 0 prints transports only, since CREM has no default port (Section 3).
	Port uint16
	// Transports are those that are printed beside RoCEv2; nil: none.
	Transports *roce.Transports
	// JSON prints each line as a JSON object instead of text.
	JSON bool
}

// Summary counts the packets of a capture.
type Summary struct {
	Packets   int // all
	RoCE      int // packets of all transports
	VeRoCE    int // of these, those of veRoCE
	MRC       int // and of MRC
	BadICRC   int // those whose invariant CRC is wrong
	Refused   int // packets that CREM can't protect, for a reason of roce.Parse; not in RoCE
	CREM      int // messages
	Malformed int // datagrams of the CREM port that are no message; not in CREM
	Cut       int // printed packets of which the capture has only the beginning
}

// String returns the counts in one sentence.
func (s Summary) String() string {
	transports := fmt.Sprintf("%d RoCEv2", s.RoCE-s.VeRoCE-s.MRC)
	if s.VeRoCE+s.MRC > 0 {
		transports += fmt.Sprintf(", %d veRoCE, %d MRC", s.VeRoCE, s.MRC)
	}
	return fmt.Sprintf("%d packets: %s (%d with a wrong ICRC), %d RoCEv2 that can't be protected, %d CREM, %d malformed CREM, %d cut by the capture, %d other",
		s.Packets, transports, s.BadICRC, s.Refused, s.CREM, s.Malformed, s.Cut, s.Packets-s.RoCE-s.Refused-s.CREM-s.Malformed)
}

// Capture reads a capture from r to its end and writes its lines to w. The Summary is of what was read, also when an error of r or
// w is returned.
func Capture(w io.Writer, r io.Reader, o Options) (Summary, error) {
	var s Summary
	file, err := open(r)
	if err != nil {
		return s, fmt.Errorf("not a capture: %w", err)
	}
	out := bufio.NewWriter(w)
	for {
		r, err := file.next()
		if errors.Is(err, io.EOF) {
			return s, out.Flush()
		}
		var p captured
		if err == nil {
			p, err = framed(r)
		}
		if err != nil {
			return s, errors.Join(fmt.Errorf("after packet %d: %w", s.Packets, err), out.Flush())
		}
		s.Packets++
		l := s.packet(p, &o)
		if l == nil {
			continue
		}
		if err := write(out, s.Packets, p, l, o.JSON); err != nil {
			return s, err
		}
	}
}

// packet returns the line of a packet, nil if it is neither of a transport nor CREM.
func (s *Summary) packet(p captured, o *Options) line {
	l := s.roce(p, o.Transports)
	if l == nil && o.Port != 0 {
		l = s.crem(p, o.Port)
	}
	if l != nil && p.cut() {
		s.Cut++
		l.add("captured", p.octets)
		l.add("length", p.length)
	}
	return l
}

// write prints a line with the packet's number in the file, as other tools count it, and its time.
func write(w *bufio.Writer, number int, p captured, l line, asJSON bool) error {
	var text []byte
	if asJSON {
		var err error
		if text, err = json.Marshal(append(line{{"packet", number}, {"time", p.time.UTC().Format(time.RFC3339Nano)}}, l...)); err != nil {
			return err
		}
	} else {
		const micro = "2006-01-02T15:04:05.000000Z"
		text = fmt.Appendf(nil, "%6d %s %s", number, p.time.UTC().Format(micro), l.text())
	}
	_, err := w.Write(append(text, '\n'))
	return err
}
