// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"strings"

	"crem.dev/crem/api/v1alpha1"
)

// Objects are the domains and profiles to render, in any order, with every default set.
type Objects struct {
	Domains  []v1alpha1.CREMDomain
	Profiles []v1alpha1.CREMProfile
}

// Fault is one thing that is wrong in one object, or in one document that should be one.
type Fault struct {
	File     string // name of the file, empty when the object did not come from one
	Document int    // number of the YAML document in the file, from 1; 0 when unknown
	Object   string // kind and name, as far as they are known
	Field    string // path of the field, for instance spec.sites[1].cidrs[0]
	Value    string // the offending value in quotes or as a number; empty when it says nothing
	Says     string // what is wrong and what to write instead; reads on from field and value
}

// Error gives the fault as one sentence: where, what, and what to write instead.
func (f Fault) Error() string {
	var where []string
	if f.File != "" {
		where = append(where, f.File)
	}
	if f.Document > 0 {
		where = append(where, fmt.Sprintf("document %d", f.Document))
	}
	s := strings.Join(where, ", ")
	if f.Object != "" && s != "" {
		s += " (" + f.Object + ")"
	} else if f.Object != "" {
		s = f.Object
	}
	if s != "" {
		s += ": "
	}
	for _, part := range []string{f.Field, f.Value} {
		if part != "" {
			s += part + " "
		}
	}
	return s + f.Says
}

// Faults are all faults of an input, as one error.
type Faults []Fault

// Error gives one line a fault.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i := range f {
		lines[i] = f[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Ref names one object.
type Ref struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// String gives kind and name.
func (r Ref) String() string { return r.Kind + " " + r.Name }

// Problem is what keeps one object from doing all that it says on one node. The others are not touched by it.
type Problem struct {
	Object  Ref    `json:"object"`
	Reason  string `json:"reason"`          // one of the reasons of v1alpha1
	Other   *Ref   `json:"other,omitempty"` // the object that stands in the way
	Message string `json:"message"`         // what is wrong and what to do; names the other object
}
