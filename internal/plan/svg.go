// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
)

// Sizes of a drawing, in its own units.
const (
	drawingWidth = 860
	chartHeight  = 340
	marginLeft   = 64
	marginRight  = 16
	marginTop    = 12
	marginBottom = 46
	cellHeight   = 34
	mostOver     = 1000 // where the axis of completion over lossless ends
)

// scale maps values to a length, logarithmically.
type scale struct{ low, high, from, to float64 }

func (s scale) at(v float64) float64 {
	v = min(max(v, s.low), s.high)
	return s.from + (s.to-s.from)*math.Log(v/s.low)/math.Log(s.high/s.low)
}

// tick is a mark on an axis.
type tick struct {
	at   float64
	text string
}

// lossTicks are the powers of ten.
func lossTicks(low, high float64) (list []tick) {
	for e := math.Ceil(math.Log10(low) - 1e-9); math.Pow(10, e) <= high*(1+1e-9); e++ {
		list = append(list, tick{math.Pow(10, e), fmt.Sprintf("1e%.0f", e)})
	}
	return list
}

// sizeTicks are every fourth power of two.
func sizeTicks(low, high int64) (list []tick) {
	for n := low; n <= high; n <<= 2 {
		list = append(list, tick{float64(n), size(float64(n))})
	}
	return list
}

func (p *Plan) lossChart(samples []Sample) template.HTML {
	low, high := samples[0].Loss, samples[len(samples)-1].Loss
	return chart(samples, func(s *Sample) float64 { return s.Loss }, lossTicks(low, high), p.Input.Loss, "loss of packets")
}

func (p *Plan) sizeChart(samples []Sample) template.HTML {
	low, high := samples[0].Message, samples[len(samples)-1].Message
	return chart(samples, func(s *Sample) float64 { return float64(s.Message) }, sizeTicks(low, high), float64(p.Input.Message), "size of a message")
}

// chart draws the p99.9 of every mechanism over x. here is where the plan stands.
func chart(samples []Sample, x func(*Sample) float64, ticks []tick, here float64, label string) template.HTML {
	most := 2.0
	for i := range samples {
		for _, v := range samples[i].P999 {
			most = max(most, v)
		}
	}
	across := scale{x(&samples[0]), x(&samples[len(samples)-1]), marginLeft, drawingWidth - marginRight}
	up := scale{0.96, min(most*1.1, mostOver), chartHeight - marginBottom, marginTop}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" role="img" aria-label="p99.9 of completion over lossless, by %s">`, drawingWidth, chartHeight, label)
	b.WriteString(`<g class="axis">`)
	for _, v := range []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000} {
		if v <= up.high {
			y := up.at(v)
			fmt.Fprintf(&b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`,
				marginLeft, drawingWidth-marginRight, y, y, marginLeft-8, y+4, v)
		}
	}
	for _, t := range ticks {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`, across.at(t.at), chartHeight-marginBottom+20, t.text)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`, (marginLeft+drawingWidth-marginRight)/2, chartHeight-6, label)
	fmt.Fprintf(&b, `<text transform="translate(16 %d) rotate(-90)" text-anchor="middle">p99.9 over lossless</text></g>`, (marginTop+chartHeight-marginBottom)/2)
	if here >= across.low && here <= across.high {
		fmt.Fprintf(&b, `<line class="here" x1="%.1f" x2="%.1f" y1="%d" y2="%d"><title>this plan</title></line>`, across.at(here), across.at(here), marginTop, chartHeight-marginBottom)
	}
	for _, l := range slices.Backward(looks) { // CREM on top
		var points []string
		for i := range samples {
			if v, ok := samples[i].P999[l.Key]; ok {
				points = append(points, fmt.Sprintf("%.1f,%.1f", across.at(x(&samples[i])), up.at(v)))
			}
		}
		if len(points) > 0 {
			fmt.Fprintf(&b, `<polyline class="curve s-%s" points="%s"><title>%s</title></polyline>`, l.Key, strings.Join(points, " "), l.Name)
		}
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

// heatMap colours each pair of loss and size by the best mechanism.
func (p *Plan) heatMap(samples []Sample) template.HTML {
	height := marginTop + cellHeight*len(mapSizes) + marginBottom
	const left = 84
	width := float64(drawingWidth-left-marginRight) / float64(len(mapLosses))
	now := p.nearest(samples)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" role="img" aria-label="best mechanism by loss and size of messages">`, drawingWidth, height)
	frame := ""
	for i := range samples {
		s := &samples[i]
		x := left + width*float64(slices.Index(mapLosses, s.Loss))
		y := marginTop + cellHeight*(len(mapSizes)-1-slices.Index(mapSizes, s.Message))
		class := ""
		if i == now {
			class = " now"
		}
		cell := fmt.Sprintf(`<g><title>%s, loss %g: %s; CREM %.2f, sends %s ahead</title><rect class="cell f-%s%s" x="%.1f" y="%d" width="%.1f" height="%d" rx="3"/><text class="in" x="%.1f" y="%d">%s</text></g>`,
			size(float64(s.Message)), s.Loss, mechanismNames[s.Best], s.P999[keyCREM], percent(s.Repair), s.Best, class, x, y, width, cellHeight, x+width/2, y+cellHeight/2+4, over(s.P999[s.Best]))
		if i == now {
			frame = cell // drawn last, so that its frame is whole
			continue
		}
		b.WriteString(cell)
	}
	b.WriteString(frame)
	for j, n := range mapSizes {
		fmt.Fprintf(&b, `<text class="axis" x="%d" y="%d" text-anchor="end">%s</text>`, left-8, marginTop+cellHeight*(len(mapSizes)-1-j)+cellHeight/2+4, size(float64(n)))
	}
	for i, loss := range mapLosses {
		fmt.Fprintf(&b, `<text class="axis" x="%.1f" y="%d" text-anchor="middle">%s</text>`, left+width*(float64(i)+0.5), height-marginBottom+18, decimal(loss))
	}
	fmt.Fprintf(&b, `<text class="axis" x="%d" y="%d" text-anchor="middle">loss of packets</text></svg>`, (left+drawingWidth-marginRight)/2, height-6)
	return template.HTML(b.String())
}

// over shows a completion over lossless in a cell.
func over(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// nearest is the sample that is nearest to the plan's own loss and size, on logarithmic scales.
func (p *Plan) nearest(samples []Sample) int {
	best, least := -1, math.Inf(1)
	for i := range samples {
		l := math.Log(samples[i].Loss / max(p.Input.Loss, 1e-9))
		n := math.Log(float64(samples[i].Message) / float64(p.Input.Message))
		if d := l*l + n*n; d < least {
			best, least = i, d
		}
	}
	return best
}
