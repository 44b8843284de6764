// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"strings"
)

// style is readable on light and dark pages: the picture has no background, and text and grid follow the reader's colour scheme.
const style = `
  text { font-family: -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; font-size: 12px; fill: #57606a }
  .title { font-size: 14px; font-weight: 600; fill: #24292f }
  .grid { stroke: #8b949e; stroke-opacity: 0.35; stroke-width: 1 }
  .ideal { stroke: #8b949e; stroke-width: 1.5; stroke-dasharray: 5 4 }
  .plain { stroke: #d4572a; fill: #d4572a }
  .crem { stroke: #1a8a72; fill: #1a8a72 }
  .line { fill: none; stroke-width: 2.5; stroke-linejoin: round }
  text.value { font-size: 11px; stroke: none; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #a3adb8 }
    .title { fill: #e6edf3 }
    .plain { stroke: #f0835a; fill: #f0835a }
    .crem { stroke: #3fc9a8; fill: #3fc9a8 }
  }
`

// Geometry of a panel, in pixels.
const (
	panelWidth  = 400
	plotLeft    = 52
	plotRight   = panelWidth - 18
	plotTop     = 52
	plotBottom  = 252
	figureWidth = 2*panelWidth + 24
	figureHigh  = 322
)

// series is one curve: a value for each path.
type series struct {
	class  string
	place  place
	values []float64
}

// place is where the numbers stand: off the curves, and the first ones, which coincide, on different sides.
type place struct {
	anchor       string
	dx, dy       float64
	firstDY      float64
	firstCentred bool
}

var (
	below      = place{anchor: "middle", dy: 18, firstDY: 18}
	above      = place{anchor: "middle", dy: -9, firstDY: -9}
	aboveRight = place{anchor: "start", dx: 5, dy: -7, firstDY: -9, firstCentred: true} // of a falling curve
	aboveLeft  = place{anchor: "end", dx: -5, dy: -6, firstDY: 18, firstCentred: true}  // of a rising one
)

// axis maps values to pixels.
type axis struct {
	log      bool
	low, top float64
	ticks    []float64
	label    func(float64) string
}

func (a *axis) y(v float64) float64 {
	f := (v - a.low) / (a.top - a.low)
	if a.log {
		f = math.Log(max(v, a.low)/a.low) / math.Log(a.top/a.low)
	}
	return plotBottom - f*(plotBottom-plotTop)
}

// canvas builds the text of the picture.
type canvas struct{ strings.Builder }

func (c *canvas) put(format string, args ...any) { fmt.Fprintf(c, format+"\n", args...) }

// plot draws goodput and p99 completion time against loss.
func plot(rows []row, l *link) []byte {
	var labels []string
	plain := [2]series{{class: "plain", place: aboveRight}, {class: "plain", place: aboveLeft}}
	protected := [2]series{{class: "crem", place: below}, {class: "crem", place: above}}
	for _, r := range rows {
		if !r.Protected {
			labels = append(labels, pathLabel(&r))
		}
		to := &plain
		if r.Protected {
			to = &protected
		}
		to[0].values = append(to[0].values, r.GoodputBps/1e6)
		to[1].values = append(to[1].values, r.MCTP99Ms)
	}
	c := &canvas{}
	c.put(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="Goodput and completion time against loss, without and with CREM">`,
		figureWidth, figureHigh, figureWidth, figureHigh)
	c.put("<style>%s</style>", style)
	c.panel(0, "Goodput, Mbit/s", labels, linear(float64(l.rate)/1e6), plain[0], protected[0])
	c.panel(panelWidth+24, "99th percentile of message completion, ms", labels, logarithmic(plain[1], protected[1]), plain[1], protected[1])
	c.legend(len(protected[0].values) > 0)
	c.put(`<text x="%d" y="%d" text-anchor="end">%d Mbit/s, %g ms round trip, 1 MiB RDMA WRITEs</text>`, figureWidth-18, figureHigh-8, l.rate/1_000_000, l.rtt.Seconds()*1000)
	c.put("</svg>")
	return []byte(c.String())
}

func pathLabel(r *row) string {
	label := fmt.Sprintf("%g %%", 100*r.Loss)
	if r.burst {
		label += " bursts"
	}
	return label
}

// linear is an axis from 0 to a rate.
func linear(top float64) *axis {
	step := math.Pow(10, math.Floor(math.Log10(top)))
	for top/step < 4 {
		step /= 2
	}
	a := &axis{top: top * 1.06, label: func(v float64) string { return fmt.Sprintf("%.0f", v) }}
	for v := 0.0; v <= top*1.001; v += step {
		a.ticks = append(a.ticks, v)
	}
	return a
}

// logarithmic is an axis of 1, 2, 5 steps around all values.
func logarithmic(all ...series) *axis {
	low, top := math.Inf(1), 0.0
	for _, s := range all {
		for _, v := range s.values {
			if v > 0 {
				low, top = min(low, v), max(top, v)
			}
		}
	}
	a := &axis{log: true, low: low / 1.6, top: top * 1.6, label: func(v float64) string { return fmt.Sprintf("%.0f", v) }}
	if top == 0 {
		a.low, a.top = 1, 10
	}
	for d := math.Pow(10, math.Floor(math.Log10(a.low))); d <= a.top; d *= 10 {
		for _, m := range []float64{1, 2, 5} {
			if v := d * m; v >= a.low && v <= a.top {
				a.ticks = append(a.ticks, v)
			}
		}
	}
	return a
}

func (c *canvas) panel(x float64, title string, labels []string, a *axis, all ...series) {
	c.put(`<g transform="translate(%g 0)">`, x)
	c.put(`<text class="title" x="%d" y="22">%s</text>`, plotLeft-40, title)
	for _, v := range a.ticks {
		c.put(`<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`, plotLeft, plotRight, a.y(v), a.y(v))
		c.put(`<text x="%d" y="%.1f" text-anchor="end">%s</text>`, plotLeft-8, a.y(v)+4, a.label(v))
	}
	at := func(i int) float64 {
		step := float64(plotRight-plotLeft) / float64(max(1, len(labels)))
		return plotLeft + step*(float64(i)+0.5)
	}
	for i, l := range labels {
		c.put(`<text x="%.1f" y="%d" text-anchor="middle">%s</text>`, at(i), plotBottom+18, l)
	}
	c.put(`<text x="%d" y="%d" text-anchor="middle">loss on the path</text>`, (plotLeft+plotRight)/2, plotBottom+37)
	if len(all[0].values) > 0 {
		y := a.y(all[0].values[0]) // the lossless transfer without CREM
		c.put(`<line class="ideal" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`, plotLeft, plotRight, y, y)
	}
	for _, s := range all {
		c.curve(s, a, at, labels)
	}
	c.put("</g>")
}

// curve draws the points, with a line between those of independent loss: the bursty path is another kind of loss, not a larger one.
func (c *canvas) curve(s series, a *axis, at func(int) float64, labels []string) {
	c.put(`<g class="%s">`, s.class)
	var points []string
	for i, v := range s.values {
		if i < len(labels) && !strings.Contains(labels[i], "bursts") {
			points = append(points, fmt.Sprintf("%.1f,%.1f", at(i), a.y(v)))
		}
	}
	c.put(`<polyline class="line" points="%s"/>`, strings.Join(points, " "))
	for i, v := range s.values {
		c.put(`<circle cx="%.1f" cy="%.1f" r="4"/>`, at(i), a.y(v))
		anchor, dx, dy := s.place.anchor, s.place.dx, s.place.dy
		if i == 0 {
			if dy = s.place.firstDY; s.place.firstCentred {
				anchor, dx = "middle", 0
			}
		}
		c.put(`<text class="value %s" x="%.1f" y="%.1f" text-anchor="%s">%.0f</text>`, s.class, at(i)+dx, a.y(v)+dy, anchor, v)
	}
	c.put("</g>")
}

func (c *canvas) legend(protected bool) {
	y := figureHigh - 12
	c.put(`<circle class="plain" cx="%d" cy="%d" r="4"/><text x="%d" y="%d">RoCEv2 alone</text>`, plotLeft, y, plotLeft+10, y+4)
	x := plotLeft + 110
	if protected {
		c.put(`<circle class="crem" cx="%d" cy="%d" r="4"/><text x="%d" y="%d">with CREM</text>`, x, y, x+10, y+4)
		x += 95
	}
	c.put(`<line class="ideal" x1="%d" x2="%d" y1="%d" y2="%d"/><text x="%d" y="%d">lossless</text>`, x, x+22, y, y, x+28, y+4)
}
