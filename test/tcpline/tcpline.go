// SPDX-License-Identifier: Apache-2.0

// Package tcpline is a TCP path that a test can cut and join again, as when a server is killed and comes back.
package tcpline

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// Line passes connections to one address on to another.
type Line struct {
	t      testing.TB
	listen func(addr string) (net.Listener, error)
	at, to string

	mu       sync.Mutex
	listener net.Listener
	open     map[net.Conn]bool
}

// New makes a line to an address or the server of an https URL, which lives until the test ends. listen makes its near end, on a free port at first; nil: on loopback of the test's own
// network namespace.
func New(t testing.TB, to string, listen func(addr string) (net.Listener, error)) *Line {
	t.Helper()
	if listen == nil {
		listen = func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) }
	}
	l := &Line{t: t, listen: listen, at: "127.0.0.1:0", to: strings.TrimSuffix(strings.TrimPrefix(to, "https://"), "/"), open: map[net.Conn]bool{}}
	l.Join()
	t.Cleanup(l.Cut)
	return l
}

// Addr is the near end.
func (l *Line) Addr() string { return l.at }

// Join lets connections through.
func (l *Line) Join() {
	l.t.Helper()
	ln, err := l.listen(l.at)
	if err != nil {
		l.t.Fatal(err)
	}
	l.mu.Lock()
	l.listener, l.at = ln, ln.Addr().String()
	l.mu.Unlock()
	go func() {
		for {
			a, err := ln.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", l.to)
			if err != nil {
				_ = a.Close()
				continue
			}
			l.mu.Lock()
			l.open[a], l.open[b] = true, true
			l.mu.Unlock()
			go l.pass(a, b)
			go l.pass(b, a)
		}
	}()
}

func (l *Line) pass(from, to net.Conn) {
	_, _ = io.Copy(to, from)
	_, _ = from.Close(), to.Close()
	l.mu.Lock()
	delete(l.open, from)
	delete(l.open, to)
	l.mu.Unlock()
}

// Cut ends all connections and refuses new ones.
func (l *Line) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.listener.Close()
	for c := range l.open {
		_ = c.Close()
	}
}
