// SPDX-License-Identifier: Apache-2.0

package node

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// line is the network between an agent and the API server, which a test can cut.
type line struct {
	t      *testing.T
	at, to string

	mu       sync.Mutex
	listener net.Listener
	open     map[net.Conn]bool
}

// newLine gives a line and a configuration that goes by it.
func newLine(t *testing.T, cfg *rest.Config) (*line, *rest.Config) {
	t.Helper()
	u, err := url.Parse(cfg.Host)
	if err != nil {
		t.Fatal(err)
	}
	l := &line{t: t, at: "127.0.0.1:0", to: u.Host, open: map[net.Conn]bool{}}
	if u.Host == "" {
		l.to = cfg.Host
	}
	l.join()
	t.Cleanup(l.cut)
	c := rest.CopyConfig(cfg)
	c.Host = "https://" + l.at
	return l, c
}

// join lets connections through.
func (l *line) join() {
	l.t.Helper()
	ln, err := net.Listen("tcp", l.at)
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

func (l *line) pass(from, to net.Conn) {
	_, _ = io.Copy(to, from)
	_, _ = from.Close(), to.Close()
	l.mu.Lock()
	delete(l.open, from)
	delete(l.open, to)
	l.mu.Unlock()
}

// cut ends all connections and refuses new ones, as when the API server is killed.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.listener.Close()
	for c := range l.open {
		_ = c.Close()
	}
}
