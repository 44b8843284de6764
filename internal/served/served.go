// SPDX-License-Identifier: Apache-2.0

// Package served tells which fields of CREM's kinds an API server knows, and leaves out what it does not: the custom resource definitions may be those of the
// release before, and server-side apply refuses a whole object for one field that is not declared.
package served

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"crem.dev/crem/api/v1alpha1"
)

// Install is what to do where something is missing.
const Install = "install the CRDs of this version (kubectl apply --server-side -f config/crd/bases, or the chart crem-crds)"

const (
	status   = "status"
	patience = 10 * time.Second // for an answer
)

// Path is where an API server describes the kinds. Every account may read it.
var Path = "/openapi/v3/apis/" + v1alpha1.GroupVersion.String()

// Fields are those that an API server knows. The zero value, and nil, knows all. It is not changed after Read.
type Fields struct {
	kinds   map[string]*schema
	missing []string
}

// Read asks an API server. Errors are sentences for people: it does not answer, or lacks a whole kind, with what to do.
func Read(ctx context.Context, client rest.Interface) (*Fields, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	raw, err := client.Get().AbsPath(Path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return nil, errors.New("the API server knows no kind of " + v1alpha1.GroupVersion.String() + ": " + Install)
	case err != nil:
		return nil, fmt.Errorf("the API server does not answer, see whether it runs and lets this account in: %w", err)
	}
	return parse(raw)
}

func parse(raw []byte) (*Fields, error) {
	var document openAPI
	if err := json.Unmarshal(raw, &document); err != nil {
		return nil, fmt.Errorf("the API server's description of %s can not be read: %w", v1alpha1.GroupVersion, err)
	}
	f := &Fields{kinds: map[string]*schema{}}
	for _, kind := range []struct {
		name string
		of   any
	}{
		{v1alpha1.KindDomain, v1alpha1.CREMDomain{}}, {v1alpha1.KindProfile, v1alpha1.CREMProfile{}},
		{v1alpha1.KindNode, v1alpha1.CREMNode{}}, {v1alpha1.KindEndpointSlice, v1alpha1.CREMEndpointSlice{}},
	} {
		s := document.kind(kind.name)
		if s == nil {
			return nil, errors.New("the API server does not know the kind " + kind.name + ": " + Install)
		}
		f.kinds[kind.name] = s
		for _, field := range missing(s, reflect.TypeOf(kind.of), "") {
			f.missing = append(f.missing, kind.name+" "+field)
		}
	}
	return f, nil
}

// Missing names the fields that this program knows and the API server does not, each with its kind, in the order of the API.
func (f *Fields) Missing() []string {
	if f == nil {
		return nil
	}
	return f.missing
}

// Keep leaves out of an object, as JSON, what the API server does not know: anything of a status, and elsewhere what says nothing. A value that somebody
// relies on is never left out: then there is an error that names the field.
func (f *Fields) Keep(object []byte) ([]byte, error) {
	if len(f.Missing()) == 0 {
		return object, nil
	}
	var all map[string]any
	if err := json.Unmarshal(object, &all); err != nil {
		return nil, fmt.Errorf("leave out what the API server does not know: %w", err)
	}
	kind, _ := all["kind"].(string)
	s := f.kinds[kind]
	if s == nil {
		return object, nil
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if name == "apiVersion" || name == "kind" || name == "metadata" {
			continue
		}
		if err := s.keep(all, name, name, name == status); err != nil {
			return nil, fmt.Errorf("the API server's %s is too old, it has no %w: %s", kind, err, Install)
		}
	}
	return json.Marshal(all)
}

// Status gives a status without what the API server does not know, to be compared with what it has.
func Status[T any](f *Fields, kind string, of T) (T, error) {
	if len(f.Missing()) == 0 {
		return of, nil
	}
	raw, err := json.Marshal(map[string]any{"kind": kind, status: of})
	if err != nil {
		return of, fmt.Errorf("leave out what the API server does not know: %w", err)
	}
	if raw, err = f.Keep(raw); err != nil {
		return of, err
	}
	var kept struct {
		Status T `json:"status"`
	}
	if err := json.Unmarshal(raw, &kept); err != nil {
		return of, fmt.Errorf("leave out what the API server does not know: %w", err)
	}
	return kept.Status, nil
}

// openAPI is what is needed of an OpenAPI v3 document.
type openAPI struct {
	Components struct {
		Schemas map[string]*schema `json:"schemas"`
	} `json:"components"`
}

type schema struct {
	Properties map[string]*schema `json:"properties"`
	Items      *schema            `json:"items"`
	Kinds      []struct {
		Kind string `json:"kind"`
	} `json:"x-kubernetes-group-version-kind"`
}

func (d *openAPI) kind(name string) *schema {
	for _, s := range d.Components.Schemas {
		if len(s.Kinds) == 1 && s.Kinds[0].Kind == name {
			return s
		}
	}
	return nil
}

// keep leaves out a field of an object, or what is below it, if s does not have it. An error is the path of a field that may not be left out.
func (s *schema) keep(object map[string]any, name, path string, freely bool) error {
	known, value := s.Properties[name], object[name]
	if known == nil {
		if !freely && !empty(value) {
			return errors.New(path)
		}
		delete(object, name)
		return nil
	}
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	} else if known = known.Items; known == nil {
		return nil
	}
	for _, v := range list {
		inner, ok := v.(map[string]any)
		if !ok || len(known.Properties) == 0 { // of a map the keys are no fields
			continue
		}
		for _, field := range slices.Sorted(maps.Keys(inner)) {
			if err := known.keep(inner, field, path+"."+field, freely); err != nil {
				return err
			}
		}
	}
	return nil
}

// empty reports whether a value says nothing.
func empty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case []any:
		return len(v) == 0
	case map[string]any:
		for _, inner := range v {
			if !empty(inner) {
				return false
			}
		}
		return true
	}
	return reflect.ValueOf(value).IsZero()
}

// missing gives the paths of the fields of a type that the schema lacks. Types of Kubernetes itself are not looked into.
func missing(s *schema, t reflect.Type, path string) (list []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice {
			if s = s.Items; s == nil {
				return []string{path + "[]"}
			}
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeOf(v1alpha1.CREMNode{}).PkgPath() {
		return nil
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type == reflect.TypeOf(metav1.TypeMeta{}) || f.Type == reflect.TypeOf(metav1.ObjectMeta{}) {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		at := strings.TrimPrefix(path+"."+name, ".")
		if property := s.Properties[name]; property == nil {
			list = append(list, at)
		} else {
			list = append(list, missing(property, f.Type, at)...)
		}
	}
	return list
}
