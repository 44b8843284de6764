// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"crem.dev/crem/agent/fec"
)

// line is what is printed of one packet: names and values in order. Both forms have the same.
type line []field

type field struct {
	name  string
	value any // string, integer, bool, []string or []line
}

func (l *line) add(name string, value any) { *l = append(*l, field{name, value}) }

// words are fields whose value alone says what it is: text prints them without their name.
var words = map[string]bool{"protocol": true, "source": true, "destination": true, "opcode": true, "type": true}

// text prints the words as they are and the other fields as name=value; of booleans only the name, if true.
func (l line) text() string {
	parts := make([]string, 0, len(l))
	for _, f := range l {
		if text := f.text(); text != "" {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, " ")
}

func (f field) text() string {
	switch v := f.value.(type) {
	case bool:
		if v {
			return f.name
		}
		return ""
	case string:
		switch {
		case f.name == "destination":
			return "> " + v
		case words[f.name]:
			return v
		case v == "" || strings.ContainsAny(v, " \""):
			return fmt.Sprintf("%s=%q", f.name, v)
		}
		return f.name + "=" + v
	case []string:
		return f.name + "=" + strings.Join(v, ",")
	case []line:
		var b strings.Builder
		b.WriteString(f.name + "=")
		for _, inner := range v {
			b.WriteString("[" + inner.text() + "]")
		}
		return b.String()
	}
	return fmt.Sprintf("%s=%v", f.name, f.value)
}

// MarshalJSON writes an object whose members stand in the order of the line.
func (l line) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, f := range l {
		if i > 0 {
			b = append(b, ',')
		}
		value, err := json.Marshal(f.value)
		if err != nil {
			return nil, err
		}
		b = append(strconv.AppendQuote(b, f.name), ':')
		b = append(b, value...)
	}
	return append(b, '}'), nil
}

// positions prints a bitmap as the ranges of its positions, as in "0-2,31".
func positions(m fec.Bitmap) string {
	var parts []string
	for from := m.First(); from >= 0; {
		to := from
		for m.Has(to + 1) {
			to++
		}
		if from == to {
			parts = append(parts, fmt.Sprint(from))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", from, to))
		}
		from = m.Next(to + 1)
	}
	return strings.Join(parts, ",")
}
