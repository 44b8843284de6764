// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// near is within what two p99.9 count as equal.
const near = 1.03

func (c *Comparison) page() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Which mechanism wins where\n")
	line("Made by `make compare` of version %s; do not edit. How the numbers come about is in [plan.md](plan.md); `kubectl crem plan` gives them for any link.\n", c.Version)
	line("One message at a time over 400 Gbit/s, RDMA MTU 4096, independent losses. Numbers are completion times over that without loss. **CREM** is adaptive: the")
	line("profile that `plan` recommends for each cell, on NICs with go-back-N, selective repeat, MRC or veRoCE; its octets sent ahead are in parentheses. **Fixed** and **XOR** send 8")
	line("parity packets with every 32 (25 %%). **NACK** and **timer** are selective repeat alone, after one or three round trips. **MRC** and **veRoCE** are these alone, with the windows")
	line("that they have: one queue pair of MRC keeps at most 32,640 packets in flight (max_psn_range), which is a tenth of what this link holds at 25 ms, and veRoCE two round trips.\n")
	c.summary(line)
	line("## p99.9 by analysis\n")
	line("Acknowledgements are lost as packets are: no mechanism here protects the last one of a message, so at 2e-3 and above every p99.9 has a timer of the NIC in it. CREM does not by")
	line("design: an acknowledgement is no source, and a gateway that repeated one would speak for a NIC; what helps is a local ACK timeout that is not longer than the path needs, and more than")
	line("one message at a time, as the acknowledgement of the next one covers a lost one. MRC and veRoCE, modelled without probes, miss a loss among the last 16 packets in the same way. Bold:")
	line("within 3 %% of the best of the row.")
	for _, rtt := range c.rtts() {
		line("\n### Round trip of %s\n", rtt)
		c.table(line, rtt)
	}
	line("\n## Simulated\n")
	line("25 ms, 400 Gbit/s, acknowledgements never lost, as published models have it; CREM with the real machines of both gateways. In parentheses the analysis. Sent: octets or")
	line("packets beyond the data. A dash: too few messages for a p99.9.\n")
	c.runs(line)
	return b.String()
}

func (c *Comparison) rtts() (list []time.Duration) {
	for _, x := range c.Cells {
		if len(list) == 0 || list[len(list)-1] != x.RTT {
			list = append(list, x.RTT)
		}
	}
	return list
}

// best is the least p99.9 of a cell.
func (x *Cell) best() float64 {
	least := math.Inf(1)
	for _, v := range x.P999 {
		least = min(least, v)
	}
	return least
}

// summary counts where CREM is within 3 % of the best, and names the others.
func (c *Comparison) summary(line func(string, ...any)) {
	for _, own := range columns {
		if own.under == "" {
			continue
		}
		good, worst := 0, 1.0
		var where *Cell
		for i := range c.Cells {
			x := &c.Cells[i]
			rest := math.Inf(1)
			for _, o := range columns {
				if v, ok := x.P999[o.key]; ok && o.under == "" {
					rest = min(rest, v)
				}
			}
			if x.P999[own.key] <= near*rest {
				good++
			} else if r := x.P999[own.key] / rest; r > worst {
				worst, where = r, x
			}
		}
		text := fmt.Sprintf("- %s is within 3 %% of the best of all others, or better, in %d of %d cells", own.name, good, len(c.Cells))
		if where != nil {
			text += fmt.Sprintf("; the worst is %.2f times the best other one, at %s, loss %s, %s", worst, where.RTT, number(where.Loss), size(where.Message))
		}
		line("%s.", text)
	}
	line("- Where it is not, it is the timer for a lost last acknowledgement: that of go-back-N (67 ms or more) is longer than the three round trips of the others; or, with")
	line("  messages that keep the link busy for many round trips, what it sends ahead. Under MRC it is the window: with one queue pair nothing fills this link, and more of them do.\n")
}

func (c *Comparison) table(line func(string, ...any), rtt time.Duration) {
	head, rule := "| message | loss |", "|---|---|"
	for _, col := range columns {
		head, rule = head+" "+col.name+" |", rule+"---|"
	}
	line("%s\n%s", head, rule)
	for i := range c.Cells {
		x := &c.Cells[i]
		if x.RTT != rtt {
			continue
		}
		row := fmt.Sprintf("| %s | %s |", size(x.Message), number(x.Loss))
		for _, col := range columns {
			v, ok := x.P999[col.key]
			if !ok {
				row += " - |"
				continue
			}
			text := over(v)
			if v <= near*x.best() {
				text = "**" + text + "**"
			}
			if r, ok := x.Repair[col.key]; ok {
				text += fmt.Sprintf(" (%s)", percent(r))
			}
			row += " " + text + " |"
		}
		line("%s", row)
	}
}

// far is from where on a simulated mean needs an explanation.
const far = 0.05

func (c *Comparison) runs(line func(string, ...any)) {
	line("| message | loss | mechanism | messages | mean | p99.9 | sent |\n|---|---|---|---|---|---|---|")
	var off []string
	for i := range c.Runs {
		r := &c.Runs[i]
		name := r.Mechanism
		for _, col := range columns {
			if col.key == r.Mechanism {
				name = col.name
			}
		}
		p999 := "-"
		if r.P999 > 0 {
			p999 = fmt.Sprintf("%s (%s)", over(r.P999), over(r.Analysis.P999))
		}
		line("| %s | %s | %s | %d | %s (%s) | %s | %s |", size(r.Message), number(r.Loss), name, r.Messages, over(r.Mean), over(r.Analysis.Mean), p999, percent(r.Sent))
		if d := r.Mean/r.Analysis.Mean - 1; math.Abs(d) > far {
			off = append(off, fmt.Sprintf("%s at %s, %s (%+.0f %%)", name, number(r.Loss), size(r.Message), 100*d))
		}
	}
	if len(off) == 0 {
		line("\nAll means agree within 5 %%.")
		return
	}
	line("\nMeans that differ by more than 5 %%: %s.", strings.Join(off, "; "))
	line("\nWhat the analysis leaves out: a simulated code asks again for the packets that a failed block lacks and not for the whole block; CREM does not know the loss")
	line("beforehand; and a few messages meet, or miss, what happens to one in many: 60 messages of 128 MiB at 1e-5 lose 20 packets, give or take 4.")
}

func over(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func percent(f float64) string {
	if f >= 0.1 {
		return fmt.Sprintf("%.0f %%", 100*f)
	}
	return fmt.Sprintf("%.2g %%", 100*f)
}

func number(f float64) string { return strings.Replace(fmt.Sprintf("%.0e", f), "e-0", "e-", 1) }

func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
