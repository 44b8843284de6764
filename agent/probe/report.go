// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"crem.dev/crem/agent/uplink"
	"crem.dev/crem/agent/wire"
)

// State says how a check went.
type State string

// States.
const (
	OK      State = "ok"
	Missing State = "missing"
	Unknown State = "unknown" // could not be tried, the detail says why
)

// Check is one thing that the agent uses.
type Check struct {
	Name     string `json:"name"`
	Required bool   `json:"required"`
	State    State  `json:"state"`
	Use      string `json:"use"`              // what the agent does with it
	Without  string `json:"without"`          // what happens without it
	Detail   string `json:"detail,omitempty"` // what the system answered, unless ok
}

// Fit says whether repairs of packets of one RDMA MTU fit an uplink.
type Fit struct {
	RDMAMTU int  `json:"rdmaMTU"` // octets of data a packet
	IPv6    bool `json:"ipv6"`    // of the CREM messages
	Need    int  `json:"need"`    // IP MTU for the largest REPAIR, octets
	Fits    bool `json:"fits"`
}

// Uplink is one uplink with its arithmetic.
type Uplink struct {
	Name string `json:"name"`
	MTU  int    `json:"mtu"`
	Why  string `json:"why"`
	Fits []Fit  `json:"fits"`
}

// Exclusion is an interface that was not taken.
type Exclusion struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Report is everything that was found out.
type Report struct {
	Kernel       string      `json:"kernel"`
	Architecture string      `json:"architecture"`
	Processors   int         `json:"processors"`
	Capabilities []Check     `json:"capabilities"`
	Features     []Check     `json:"features"`
	Uplinks      []Uplink    `json:"uplinks"`
	Excluded     []Exclusion `json:"excluded,omitempty"`
	Unrouted     []string    `json:"unrouted,omitempty"` // prefixes of other sites without a route
	UplinkNote   string      `json:"uplinkNote,omitempty"`
	K            int         `json:"k"` // positions of a block, for which the uplinks' arithmetic holds
	Works        []string    `json:"works"`
	Lacks        []string    `json:"lacks"`
	OK           bool        `json:"ok"` // everything required works
}

// rdmaMTUs are the sizes that RDMA networks use over long links.
var rdmaMTUs = []int{1024, 4096}

// addUplinks does the arithmetic for each uplink.
func (r *Report) addUplinks(f uplink.Facts) {
	for _, u := range f.Uplinks {
		out := Uplink{Name: u.Name, MTU: u.MTU, Why: u.Why}
		for _, mtu := range rdmaMTUs {
			for _, v6 := range []bool{false, true} {
				need := wire.NeededMTU(mtu, r.K, v6)
				out.Fits = append(out.Fits, Fit{RDMAMTU: mtu, IPv6: v6, Need: need, Fits: need <= u.MTU})
			}
		}
		r.Uplinks = append(r.Uplinks, out)
	}
	for _, x := range f.Excluded {
		r.Excluded = append(r.Excluded, Exclusion(x))
	}
	for _, p := range f.Unrouted {
		r.Unrouted = append(r.Unrouted, p.String())
	}
}

// judge draws the conclusions.
func (r *Report) judge() {
	r.OK = true
	for _, c := range append(append([]Check(nil), r.Capabilities...), r.Features...) {
		if c.State == OK {
			continue
		}
		if c.Required {
			r.OK = false
		}
		say := c.Name + ": " + c.Without
		if c.Detail != "" {
			say += " (" + c.Detail + ")"
		}
		r.Lacks = append(r.Lacks, say)
	}
	if r.OK {
		r.Works = append(r.Works, "Leaving flows can be protected (CSF), arriving ones restored in order or at once (CRF).")
	}
	for _, u := range r.Uplinks {
		for _, f := range u.Fits {
			family := "IPv4"
			if f.IPv6 {
				family = "IPv6"
			}
			if f.Fits {
				r.Works = append(r.Works, fmt.Sprintf("%s: RDMA MTU %d with CREM over %s.", u.Name, f.RDMAMTU, family))
			} else {
				r.Lacks = append(r.Lacks, fmt.Sprintf("%s: RDMA MTU %d with CREM over %s needs an MTU of %d, %s has %d: raise it, or lower the RDMA MTU; such flows pass unprotected.", u.Name, f.RDMAMTU, family, f.Need, u.Name, u.MTU))
			}
		}
	}
	for _, x := range r.Excluded {
		r.Lacks = append(r.Lacks, fmt.Sprintf("%s is no uplink: %s", x.Name, x.Why))
	}
	for _, p := range r.Unrouted {
		r.Lacks = append(r.Lacks, fmt.Sprintf("There is no route to %s: add one, flows to it can not leave.", p))
	}
	if r.UplinkNote != "" {
		r.Lacks = append(r.Lacks, r.UplinkNote)
	}
}

// Text writes the report for people.
func (r *Report) Text(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) } // Flush tells
	line("Kernel %s, %s, %d processors", r.Kernel, r.Architecture, r.Processors)
	for _, group := range []struct {
		title  string
		checks []Check
	}{{"Capabilities", r.Capabilities}, {"Features", r.Features}} {
		line("\n%s", group.title)
		for _, c := range group.checks {
			optional := ""
			if !c.Required {
				optional = " (optional)"
			}
			line("  %s\t%s%s\t%s", c.State, c.Name, optional, c.Use)
		}
	}
	line("\nUplinks, for blocks of %d", r.K)
	for _, u := range r.Uplinks {
		line("  %s\tMTU %d\t%s", u.Name, u.MTU, u.Why)
		for _, f := range u.Fits {
			family, verdict := "IPv4", "fits"
			if f.IPv6 {
				family = "IPv6"
			}
			if !f.Fits {
				verdict = "does not fit"
			}
			line("  \tRDMA MTU %d over %s\tneeds %d: %s", f.RDMAMTU, family, f.Need, verdict)
		}
	}
	if len(r.Uplinks) == 0 {
		line("  none")
	}
	for _, group := range []struct {
		title string
		says  []string
	}{{"Works", r.Works}, {"Does not work", r.Lacks}} {
		line("\n%s", group.title)
		for _, s := range group.says {
			line("  - %s", s)
		}
		if len(group.says) == 0 {
			line("  nothing")
		}
	}
	verdict := "This node can protect traffic."
	if !r.OK {
		verdict = "This node can not protect traffic: what is required and missing is listed above. Traffic passes as if there were no agent."
	}
	line("\n%s", strings.TrimSpace(verdict))
	return w.Flush()
}
