// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"
)

// testCase is one run.
type testCase struct {
	Test      string // ib_write_bw, ib_send_bw, ib_read_bw or rping
	IP        int    // 4 or 6
	MTU       int    // RoCE MTU
	Loss      float64
	Protected bool
	Messages  int
	Size      int  // octets of a message
	Calm      bool // two messages at a time, and no polling for their ends: leaves the guest's processor to others
}

const (
	rtt         = 10 * time.Millisecond
	messageSize = 65536
	caseLimit   = 150 * time.Second // for the client; the slowest unprotected case needs about half of it
)

func (c testCase) name() string {
	p := "plain"
	if c.Protected {
		p = "crem"
	}
	return fmt.Sprintf("%s/ipv%d/%d/%g/%s", c.Test, c.IP, c.MTU, c.Loss, p)
}

// packets is how many packets of data the messages are.
func (c testCase) packets() int { return c.Messages * ((c.Size + c.MTU - 1) / c.MTU) }

// responder says that the data flows from the server's guest to the client's.
func (c testCase) responder() bool { return c.Test == "ib_read_bw" }

// guestMTU is the IP MTU for which Soft-RoCE chooses the RoCE MTU.
func (c testCase) guestMTU() int {
	if c.MTU == 1024 {
		return 1500
	}
	return lanMTU
}

func selectCases(selection string) ([]testCase, error) {
	switch selection {
	case "full":
		return full(), nil
	case "short":
		return short(), nil
	}
	return nil, fmt.Errorf("-cases is full, short or ipsec, not %q", selection)
}

// sized gives a case its number of messages. A flow is unprotected for its first two or three round trips, and go-back-N costs its share there: a run is
// long enough that this is a detail, and short where every loss costs a window.
func sized(c testCase) testCase {
	packets := 25600
	if !c.Protected && c.Loss > 0.02 {
		packets = 3200
	} else if !c.Protected {
		packets = 6400
	}
	if c.Size = messageSize; c.Test == "rping" {
		c.Size, c.Messages = 60000, 40
		return c
	}
	c.Messages = packets * c.MTU / c.Size
	return c
}

func full() (cases []testCase) {
	for _, test := range []string{"ib_write_bw", "ib_send_bw", "ib_read_bw"} {
		for _, ip := range []int{4, 6} {
			for _, mtu := range []int{1024, 4096} {
				for _, loss := range []float64{0, 0.01, 0.05} {
					for _, protected := range []bool{false, true} {
						cases = append(cases, sized(testCase{Test: test, IP: ip, MTU: mtu, Loss: loss, Protected: protected}))
					}
				}
			}
		}
	}
	// rping compares every octet that came back with what it had sent, so it stands here for what the RDMA receiver finds in memory. Its queue pairs wait
	// seconds for every timeout: unprotected it would take minutes and show nothing more.
	for _, ip := range []int{4, 6} {
		for _, loss := range []float64{0.01, 0.05} {
			cases = append(cases, sized(testCase{Test: "rping", IP: ip, MTU: 1024, Loss: loss, Protected: true}))
		}
	}
	return cases
}

func short() []testCase {
	return []testCase{
		sized(testCase{Test: "ib_write_bw", IP: 4, MTU: 1024, Loss: 0.01}),
		sized(testCase{Test: "ib_write_bw", IP: 4, MTU: 1024, Loss: 0.01, Protected: true}),
		sized(testCase{Test: "rping", IP: 4, MTU: 1024, Loss: 0.01, Protected: true}),
	}
}
