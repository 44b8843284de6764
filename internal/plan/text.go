// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// lineLength is where text is broken.
const lineLength = 100

// Text writes the plan for a terminal.
func (p *Plan) Text(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", p.Title())
	b.WriteString(p.YAML)
	fmt.Fprintf(&b, "\nCompletion of one message; without loss it takes %s\n", duration(p.Lossless))
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "\tMEAN\tP50\tP99\tP99.9\tOVER LOSSLESS\tSENT AHEAD") // a strings.Builder takes everything
	for i := range p.Mechanisms {
		_, _ = fmt.Fprintln(w, strings.Join(p.row(&p.Mechanisms[i]), "\t"))
	}
	_ = w.Flush()
	b.WriteString("\n")
	for _, f := range p.Findings {
		fmt.Fprintf(&b, "%-5s %s\n", marks[f.Level], wrap(capital(f.Topic)+": "+f.Says, 6))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// marks stand before findings.
var marks = map[Level]string{Act: "[act]", Note: "[i]", Fine: "[ok]"}

// Title says what the plan is for.
func (p *Plan) Title() string {
	in := &p.Input
	s := fmt.Sprintf("Plan for %s messages over %s, %s round trip, loss %s", size(float64(in.Message)), rateText(float64(in.Bandwidth)), in.RTT, decimal(in.Loss))
	if in.Burst > 1 {
		s += fmt.Sprintf(" in runs of %g", in.Burst)
	}
	s += ", " + mechanismNames[in.alone()]
	if in.Flows > 1 {
		s += fmt.Sprintf(", %d queue pairs", in.Flows)
	}
	return s
}

// row is a mechanism's line of the table.
func (p *Plan) row(m *Mechanism) []string {
	name, p999 := m.Name, "-"
	if m.Messages > 0 {
		name += fmt.Sprintf(" (%d messages)", m.Messages)
	}
	over := fmt.Sprintf("%.2f mean", m.Mean/p.Lossless)
	if m.P999 > 0 {
		p999 = duration(m.P999)
		over += fmt.Sprintf(", %.2f p99.9", m.P999/p.Lossless)
	}
	return []string{name, duration(m.Mean), duration(m.P50), duration(m.P99), p999, over, percent(m.Overhead)}
}

// wrap breaks a line between words; all lines but the first are indented.
func wrap(s string, indent int) string {
	var b strings.Builder
	at := indent
	for i, word := range strings.Fields(s) {
		switch {
		case i == 0:
		case at+1+len(word) > lineLength:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteString(" ")
			at++
		}
		b.WriteString(word)
		at += len(word)
	}
	return b.String()
}
