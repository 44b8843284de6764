// SPDX-License-Identifier: Apache-2.0

package plan

import (
	_ "embed"
	"html/template"
	"io"
	"strings"

	"crem.dev/crem/internal/version"
)

//go:embed report.html.tmpl
var reportText string

var report = template.Must(template.New("report").Parse(reportText))

// look is how a mechanism is drawn: on light and dark paper, and so that it is told apart without colour.
type look struct {
	Key, Name   string
	Light, Dark template.CSS
	Dash        template.CSS
}

var looks = []look{
	{keyCREM, "CREM", "#1a66c2", "#6aa9f7", "none"},
	{keyGoBackN, mechanismNames[keyGoBackN], "#b3362c", "#f08a7f", "7 4"},
	{keyNACK, mechanismNames[keyNACK], "#157a52", "#5cc795", "2 3"},
	{keyTimer, mechanismNames[keyTimer], "#966000", "#e0ab4a", "9 3 2 3"},
	{keyMDS, mechanismNames[keyMDS], "#7342b5", "#b895f0", "12 3"},
	{keyXOR, mechanismNames[keyXOR], "#5f6b76", "#a5b0bb", "4 4"},
	{keyMRC, mechanismNames[keyMRC], "#0f7a86", "#52c3d0", "6 2 1 2"},
	{keyVeRoCE, mechanismNames[keyVeRoCE], "#a8327f", "#ee8cc6", "1 3"},
}

// page is what the template is filled with.
type page struct {
	Plan                             *Plan
	Version, Lossless, Message, Loss string
	Keys                             []look
	Findings                         []pageFinding
	Rows                             []pageRow
	ByLoss, BySize, Map              template.HTML // SVG of our own numbers and words
	Partial                          bool
}

type pageFinding struct {
	Topic, Word, Says string
	Level             Level
}

type pageRow struct {
	Class string
	Cells []string
}

var levelWords = map[Level]string{Act: "to do", Note: "to know", Fine: "good"}

// HTML writes the plan and a Survey of it as one page that needs nothing else: no script, no picture, no font.
func (p *Plan) HTML(out io.Writer, s *Survey) error {
	d := page{
		Plan: p, Version: version.Version, Lossless: duration(p.Lossless), Message: size(float64(p.Input.Message)), Loss: decimal(p.Input.Loss),
		Partial: len(s.Map) < len(mapLosses)*len(mapSizes),
	}
	for _, l := range looks {
		if l.Key != keyXOR || p.Input.Burst == 1 {
			d.Keys = append(d.Keys, l)
		}
	}
	for _, f := range p.Findings {
		d.Findings = append(d.Findings, pageFinding{capital(f.Topic), levelWords[f.Level], f.Says, f.Level})
	}
	for i := range p.Mechanisms {
		m := &p.Mechanisms[i]
		row := pageRow{Cells: p.row(m)}
		if m.Key == keyCREM {
			row.Class = "crem"
		}
		d.Rows = append(d.Rows, row)
	}
	if len(s.ByLoss) > 1 {
		d.ByLoss = p.lossChart(s.ByLoss)
	}
	if len(s.BySize) > 1 {
		d.BySize = p.sizeChart(s.BySize)
	}
	if len(s.Map) > 0 {
		d.Map = p.heatMap(s.Map)
	}
	var b strings.Builder
	if err := report.Execute(&b, d); err != nil {
		return err
	}
	_, err := io.WriteString(out, b.String())
	return err
}
