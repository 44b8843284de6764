// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"crem.dev/crem/test/netns"
)

// send sends n datagrams from one end of a link of its namespace.
func send(t *testing.T, to string, n int) {
	t.Helper()
	c, err := net.Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range n {
		_, _ = c.Write(make([]byte, 100)) // refused by the far end, or by the queue
	}
}

// What the root queue drops counts, and what passes counts; an interface without a queue has no drops.
func TestCountersOfAQueueThatDrops(t *testing.T) {
	netns.NeedRoot(t)
	n, _ := node(t)
	n.Do(func() {
		link, err := netlink.LinkByName("wan0")
		if err != nil {
			t.Fatal(err)
		}
		index := link.Attrs().Index
		read := func() Counters {
			t.Helper()
			c, err := ReadCounters(index)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		send(t, "192.0.2.254:9", 20)
		before := read()
		if before.Sent == 0 || before.Received == 0 || before.SendDropped != 0 {
			t.Fatalf("%+v", before)
		}
		// A bucket for some packets, and behind it a queue for as many.
		tbf := &netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}, Rate: 1000, Limit: 500, Buffer: netlink.Xmittime(1000, 500)}
		if err := netlink.QdiscAdd(tbf); err != nil {
			t.Fatal(err)
		}
		send(t, "192.0.2.254:9", 30)
		if after := read(); after.SendDropped == 0 || after.SendDropped+after.Sent < before.Sent+20 || after.SendDropped > 60 {
			t.Errorf("%+v before, %+v after", before, after)
		}
		if _, err := ReadCounters(1 << 20); err == nil {
			t.Error("an interface that is not there has counters")
		}
	})
}

// WAN ECN, two thresholds: what waits before an uplink is measured, with one queue and with several under it. An interface that has none says so.
func TestWANECN_QueueIsMeasured(t *testing.T) {
	netns.NeedRoot(t)
	n, _ := node(t)
	n.Do(func() {
		link, err := netlink.LinkByName("wan0")
		if err != nil {
			t.Fatal(err)
		}
		index := link.Attrs().Index
		if n, err := Queued(index); err == nil {
			t.Errorf("an interface without a queue has %d octets in it", n)
		}
		send(t, "192.0.2.254:9", 1) // the neighbour is known from here on
		root := netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
		for what, add := range map[string]func() error{
			"one queue": func() error {
				return netlink.QdiscAdd(&netlink.Tbf{QdiscAttrs: root, Rate: 1000, Limit: 50_000, Buffer: netlink.Xmittime(1000, 500)})
			},
			"queues under it": func() error {
				htb := netlink.NewHtb(root)
				htb.Defcls = 2
				if err := netlink.QdiscAdd(htb); err != nil {
					return err
				}
				return netlink.ClassAdd(netlink.NewHtbClass(
					netlink.ClassAttrs{LinkIndex: index, Handle: netlink.MakeHandle(1, 2), Parent: root.Handle}, netlink.HtbClassAttrs{Rate: 8000, Buffer: 500},
				))
			},
		} {
			if err := add(); err != nil {
				t.Fatal(err)
			}
			if n, err := Queued(index); err != nil || n != 0 {
				t.Errorf("%s, nothing sent: %d, %v", what, n, err)
			}
			send(t, "192.0.2.254:9", 30)
			if n, err := Queued(index); err != nil || n < 20*100 || n > 40*200 {
				t.Errorf("%s, 30 datagrams of 100 octets sent: %d octets wait, %v", what, n, err)
			}
			if err := netlink.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Queued(1 << 20); err == nil {
			t.Error("an interface that is not there has a queue")
		}
	})
}
