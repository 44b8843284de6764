// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// durationText is the form of durations that the CRDs accept: Go's, without sign and with a digit first.
var durationText = regexp.MustCompile(`^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m))+$`)

// checkShape compares a tree of maps, lists and scalars with a Go type: unknown fields and values of another type. It gives
// better sentences than a decoder's first error, and all of them.
func checkShape(v any, t reflect.Type, path string) []Fault {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[metav1.Duration]():
		if s, ok := v.(string); ok && (len(s) > 16 || !durationText.MatchString(s)) {
			return []Fault{{Field: path, Value: quote(s), Says: "is not a duration: write a number and a unit, for instance 50ms"}}
		}
		return checkText(v, path)
	case reflect.TypeFor[metav1.Time]():
		return checkText(v, path)
	case reflect.TypeFor[metav1.FieldsV1]():
		return nil // written by the API server, kept by kubectl get -o yaml
	}
	switch t.Kind() {
	case reflect.Struct:
		return checkStruct(v, t, path)
	case reflect.Map:
		return checkMap(v, t, path)
	case reflect.Slice:
		list, ok := v.([]any)
		if !ok {
			return wrong(v, path, "a list: write one item a line, each after a dash")
		}
		var faults []Fault
		for i, item := range list {
			faults = append(faults, checkShape(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i))...)
		}
		return faults
	case reflect.String:
		return checkText(v, path)
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			return wrong(v, path, "true or false")
		}
	case reflect.Int32, reflect.Int64:
		n, ok := v.(json.Number)
		if !ok {
			return wrong(v, path, "a whole number, without quotes")
		}
		if _, err := strconv.ParseInt(n.String(), 10, t.Bits()); err != nil {
			return []Fault{{Field: path, Value: n.String(), Says: "is not a whole number in range: write one without fraction"}}
		}
	default: // the API has no other kinds
	}
	return nil
}

func checkText(v any, path string) []Fault {
	if _, ok := v.(string); !ok {
		return wrong(v, path, "text: write it in quotes")
	}
	return nil
}

func checkMap(v any, t reflect.Type, path string) []Fault {
	m, ok := v.(map[string]any)
	if !ok {
		return wrong(v, path, "an object: write its fields below it, indented")
	}
	var faults []Fault
	for _, key := range sortedKeys(m) {
		faults = append(faults, checkShape(m[key], t.Elem(), path+"["+key+"]")...)
	}
	return faults
}

func checkStruct(v any, t reflect.Type, path string) []Fault {
	m, ok := v.(map[string]any)
	if !ok {
		return wrong(v, path, "an object: write its fields below it, indented")
	}
	fields := map[string]jsonField{}
	jsonFields(t, fields)
	var faults []Fault
	for _, key := range sortedKeys(m) {
		f, known := fields[key]
		if !known {
			faults = append(faults, Fault{Field: join(path, key), Says: "is an unknown field: " + instead(key, sortedKeys(fields))})
			continue
		}
		faults = append(faults, checkShape(m[key], f.t, join(path, key))...)
	}
	for _, key := range sortedKeys(fields) {
		if _, there := m[key]; !there && fields[key].required {
			faults = append(faults, Fault{Field: join(path, key), Says: "is missing: write " + example(join(path, key))})
		}
	}
	return faults
}

// jsonField is one field of a struct as JSON knows it.
type jsonField struct {
	t        reflect.Type
	required bool
}

// jsonFields collects the fields of a struct by their JSON names. A field that JSON never omits is required, as in the CRDs.
func jsonFields(t reflect.Type, fields map[string]jsonField) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" && f.Anonymous:
			jsonFields(f.Type, fields)
		case name != "" && name != "-":
			fields[name] = jsonField{t: f.Type, required: !strings.Contains(options, "omit")}
		}
	}
}

// examples say what to write for a field that must be there.
var examples = map[string]string{
	"metadata":              "metadata: {name: …}",
	"spec":                  "spec: {} and the fields that docs/configuration.md lists",
	"spec.wan.mode":         "Normal where the WAN marks outer headers, else Compatibility",
	"spec.wan.l4s":          "Absent, if no L4S traffic or marking is on the paths between the sites",
	"spec.wan.queue.early":  "the octets that may wait before anybody is warned, for instance 256Ki",
	"spec.wan.queue.severe": "the octets that may wait before the endpoints are told, for instance 1Mi",
	"spec.port":             "the UDP port of all CREM messages of the domain, a free one from 49152 to 65535",
	"spec.site":             "the name of this cluster's own entry in spec.sites",
	"spec.sites":            "all sites of the domain, each with name and cidrs",
	"spec.sites.name":       "the name of the site, for instance east",
	"spec.sites.cidrs":      "the prefixes of the site's RDMA endpoints, for instance [10.1.0.0/16]",
	"spec.ipsec":            "{mode: Required} or {mode: BoundaryFiltered}",
	"spec.ipsec.mode":       "Required or BoundaryFiltered",
	"spec.reporter.mode":    "Off or OwnDrops",
	"spec.profileRef.name":  "the name of a CREMProfile",
}

// example says what to write for the field at path, whatever its indices.
func example(path string) string {
	var b strings.Builder
	depth := 0
	for _, r := range path {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		default:
			if depth == 0 {
				b.WriteRune(r)
			}
		}
	}
	if e, ok := examples[b.String()]; ok {
		return e
	}
	return "it"
}

func wrong(v any, path, want string) []Fault {
	is := "an object"
	switch v := v.(type) {
	case string:
		is = "text"
	case bool:
		is = strconv.FormatBool(v)
	case json.Number:
		is = "the number " + v.String()
	case []any:
		is = "a list"
	case nil:
		is = "empty"
	}
	return []Fault{{Field: path, Says: "is " + is + " and must be " + want}}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// instead says what to write in place of an unknown word.
func instead(word string, known []string) string {
	if hint := didYouMean(word, known); hint != "" {
		return strings.TrimPrefix(hint, ", ")
	}
	return "remove it, or write one of " + strings.Join(known, ", ")
}

// didYouMean names the known word nearest to word, when one is near.
func didYouMean(word string, known []string) string {
	best, least := "", 3
	for _, k := range known {
		if d := distance(strings.ToLower(word), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return ", did you mean " + best + "?"
}

// distance is the number of letters to insert, delete or change to get from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost++
			}
			diag = row[j+1]
			row[j+1] = min(cost, row[j]+1, diag+1)
		}
	}
	return row[len(b)]
}
