// SPDX-License-Identifier: Apache-2.0

//go:build linux

package netns

import (
	"net"
	"os/exec"
	"testing"
	"time"
)

// Two namespaces behind a router reach each other, and nothing of it is visible outside.
func TestRoutedNamespaces(t *testing.T) {
	a, r, b := New(t), New(t), New(t)
	Link(t, 1500, End{NS: a, Name: "a0", Addrs: []string{"10.1.0.2/24", "fd01::2/64"}}, End{NS: r, Name: "ra", Addrs: []string{"10.1.0.1/24", "fd01::1/64"}})
	Link(t, 9000, End{NS: r, Name: "rb", Addrs: []string{"10.2.0.1/24", "fd02::1/64"}}, End{NS: b, Name: "b0", Addrs: []string{"10.2.0.2/24", "fd02::2/64"}})
	r.Forward()
	a.Route("10.2.0.0/24", "10.1.0.1")
	b.Route("10.1.0.0/24", "10.2.0.1")
	a.Route("fd02::/64", "fd01::1")
	b.Route("fd01::/64", "fd02::1")

	for _, address := range []string{"10.2.0.2:7000", "[fd02::2]:7000"} {
		var server net.PacketConn
		var client net.Conn
		b.Do(func() {
			var err error
			if server, err = net.ListenPacket("udp", address); err != nil {
				t.Fatal(err)
			}
		})
		defer server.Close()
		a.Do(func() {
			var err error
			if client, err = net.Dial("udp", address); err != nil {
				t.Fatal(err)
			}
		})
		defer client.Close()
		if _, err := client.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if err := server.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 16)
		n, _, err := server.ReadFrom(buf)
		if err != nil || string(buf[:n]) != "hello" {
			t.Fatalf("%s: got %q, %v", address, buf[:n], err)
		}
	}
	if _, err := net.InterfaceByName("ra"); err == nil {
		t.Error("the router's interface is visible outside of its namespace")
	}
}

// A process that is started in the namespace sees its interfaces, and so does one that enters it by Path.
func TestProcessInside(t *testing.T) {
	n := New(t)
	cmd := exec.Command("cat", "/proc/self/net/dev")
	var out, entered []byte
	var err error
	n.Do(func() { out, err = cmd.Output() })
	if err != nil {
		t.Fatal(err)
	}
	if entered, err = exec.Command("nsenter", "--net="+n.Path(), "cat", "/proc/self/net/dev").Output(); err != nil {
		t.Skipf("needs nsenter: %v", err)
	}
	if len(out) == 0 || string(out) != string(entered) {
		t.Errorf("inside:\n%s\nentered:\n%s", out, entered)
	}
}
