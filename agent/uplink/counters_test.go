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
