// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"crem.dev/crem/api/v1alpha1"
)

// maxFileOctets bounds one file of Decode, as the API server bounds one request.
const maxFileOctets = 1 << 20

// File is the text of one file of YAML or JSON documents.
type File struct {
	Name string // as faults should name it
	Data []byte
}

// Decode reads domains and profiles from files, as strictly as the API server would: unknown fields, wrong types, missing fields
// and every rule of the CRDs. The error is of type Faults and names every fault found. Objects are returned only without one.
func Decode(files []File) (Objects, error) {
	var (
		objs   Objects
		faults Faults
		seen   = map[Ref]string{}
	)
	for _, file := range files {
		if len(file.Data) > maxFileOctets {
			faults = append(faults, Fault{File: file.Name, Says: "is over 1 MiB: write one domain and its profiles a file"})
			continue
		}
		for _, doc := range documents(file) {
			faults = append(faults, doc.decode(&objs, seen)...)
		}
	}
	if len(faults) > 0 {
		return Objects{}, faults
	}
	return objs, nil
}

// document is one YAML document of a file.
type document struct {
	file   string
	number int // from 1
	line   int // line of the file at which its text begins, from 1
	text   []byte
}

// documents splits a file at its document markers. Documents without content are left out, but counted.
func documents(file File) []document {
	var (
		docs []document
		cur  = document{file: file.Name, number: 1, line: 1}
		flat = func() {
			if !blank(cur.text) {
				docs = append(docs, cur)
			}
		}
	)
	for n, line := range bytes.SplitAfter(file.Data, []byte("\n")) {
		rest, marker := bytes.CutPrefix(line, []byte("---"))
		if !marker || (len(bytes.TrimSpace(rest)) > 0 && rest[0] != ' ' && rest[0] != '\t') {
			cur.text = append(cur.text, line...)
			continue
		}
		flat()
		next := cur.number + 1
		if blank(cur.text) && cur.number == 1 {
			next = 1 // a marker before the first document opens it
		}
		cur = document{file: file.Name, number: next, line: n + 1, text: append([]byte(nil), rest...)}
	}
	flat()
	return docs
}

// blank says whether text holds nothing but space and comments.
func blank(text []byte) bool {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("...")) {
			return false
		}
	}
	return true
}

// decode adds the document's object to objs, or says what is wrong with it.
func (d document) decode(objs *Objects, seen map[Ref]string) []Fault {
	raw, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		return d.faults("", Fault{Says: d.syntax(err)})
	}
	tree, isMap := parseJSON(raw).(map[string]any)
	if !isMap {
		return d.faults("", Fault{Says: "is not an object: write apiVersion, kind, metadata and spec"})
	}
	dropNulls(tree)
	delete(tree, "status") // the operator's and the agents', not the writer's
	kind, name := text(tree["kind"]), ""
	if meta, ok := tree["metadata"].(map[string]any); ok {
		name = text(meta["name"])
	}
	object := strings.TrimSpace(kind + " " + name)
	if fault := checkKind(tree); fault != nil {
		return d.faults(object, *fault)
	}
	ref := Ref{Kind: kind, Name: name}
	here := fmt.Sprintf("%s, document %d", d.file, d.number)
	if first, twice := seen[ref]; twice {
		return d.faults(object, Fault{Says: "is written a second time, first in " + first + ": write each object once"})
	}
	seen[ref] = here

	if kind == v1alpha1.KindDomain {
		var domain v1alpha1.CREMDomain
		faults := into(tree, &domain)
		if len(faults) == 0 {
			faults = ValidateDomain(&domain)
			objs.Domains = append(objs.Domains, domain)
		}
		return d.faults(object, faults...)
	}
	defaultProfile(tree)
	var profile v1alpha1.CREMProfile
	faults := into(tree, &profile)
	if len(faults) == 0 {
		faults = ValidateProfile(&profile)
		objs.Profiles = append(objs.Profiles, profile)
	}
	return d.faults(object, faults...)
}

// faults fills in where the faults are.
func (d document) faults(object string, list ...Fault) []Fault {
	for i := range list {
		list[i].File, list[i].Document, list[i].Object = d.file, d.number, object
	}
	return list
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

// syntax makes one sentence of a YAML error, with the line counted in the file.
func (d document) syntax(err error) string {
	msg := strings.Join(strings.Fields(err.Error()), " ")
	for _, noise := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors: "} {
		msg = strings.Replace(msg, noise, "", 1)
	}
	msg = yamlLine.ReplaceAllStringFunc(msg, func(s string) string {
		n, _ := strconv.Atoi(yamlLine.FindStringSubmatch(s)[1])
		return fmt.Sprintf("line %d of the file: ", n+d.line-1)
	})
	msg = strings.ReplaceAll(msg, "already set in map", "is written twice: write it once")
	return "is not YAML: " + msg
}

// checkKind refuses what is not a kind that people write.
func checkKind(tree map[string]any) *Fault {
	want := v1alpha1.GroupVersion.String()
	kind := text(tree["kind"])
	switch {
	case kind == v1alpha1.KindNode:
		return &Fault{Field: "kind", Value: quote(kind), Says: "is written by the operator: write CREMDomain and CREMProfile"}
	case kind != v1alpha1.KindDomain && kind != v1alpha1.KindProfile:
		return &Fault{Field: "kind", Value: quote(kind), Says: "is unknown: write CREMDomain or CREMProfile" + didYouMean(kind, []string{v1alpha1.KindDomain, v1alpha1.KindProfile})}
	case text(tree["apiVersion"]) != want:
		return &Fault{Field: "apiVersion", Value: quote(text(tree["apiVersion"])), Says: "is unknown: write " + want}
	}
	return nil
}

// into checks the shape of tree against the type of object and fills it.
func into(tree map[string]any, object any) []Fault {
	if faults := checkShape(tree, reflect.TypeOf(object).Elem(), ""); len(faults) > 0 {
		return faults
	}
	raw, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(raw, object)
	}
	if err != nil {
		return []Fault{{Says: "can not be read: " + err.Error()}}
	}
	return nil
}

// parseJSON parses what YAMLToJSONStrict made, keeping numbers as they are written.
func parseJSON(raw []byte) any {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return nil
	}
	return v
}

// dropNulls removes fields that are null: to the API server they are absent.
func dropNulls(v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, item := range v {
			if item == nil {
				delete(v, key)
			}
			dropNulls(item)
		}
	case []any:
		for _, item := range v {
			dropNulls(item)
		}
	}
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func quote(s string) string { return strconv.Quote(s) }
