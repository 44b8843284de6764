// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"crem.dev/crem/api/v1alpha1"
)

// crdPeriod is how often the operator looks whether its custom resource definitions have come.
const crdPeriod = 5 * time.Second

// waitForCRDs returns when the API server knows the kinds with all fields that this operator writes. Until then it says what is missing, once for
// each answer, instead of ending and being started again for ever. It gives false when the context ends first.
func waitForCRDs(ctx context.Context, log logr.Logger, cfg *rest.Config, health *healthServer) bool {
	said := ""
	for {
		why := missingCRDs(ctx, cfg)
		if why == "" {
			return true
		}
		health.set(why)
		if why != said && ctx.Err() == nil {
			log.Info("Waiting for the custom resource definitions of CREM", "because", why)
			said = why
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(crdPeriod):
		}
	}
}

// missingCRDs says what the API server does not know, with what to do; empty when it knows everything. Every account may read what it asks for.
func missingCRDs(ctx context.Context, cfg *rest.Config) string {
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return "there is no client for the API server: " + err.Error()
	}
	path := "/openapi/v3/apis/" + v1alpha1.GroupVersion.String()
	raw, err := client.RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	const install = "install the CRDs of this version (kubectl apply --server-side -f config/crd/bases, or the chart crem-crds)"
	switch {
	case apierrors.IsNotFound(err):
		return "the API server knows no kind of " + v1alpha1.GroupVersion.String() + ": " + install
	case err != nil:
		return "the API server does not answer, see whether it runs and lets this account in: " + err.Error()
	}
	var document openAPI
	if err := json.Unmarshal(raw, &document); err != nil {
		return "the API server's description of " + v1alpha1.GroupVersion.String() + " can not be read: " + err.Error()
	}
	for _, kind := range []struct {
		name string
		of   any
	}{
		{v1alpha1.KindDomain, v1alpha1.CREMDomain{}}, {v1alpha1.KindProfile, v1alpha1.CREMProfile{}},
		{v1alpha1.KindNode, v1alpha1.CREMNode{}}, {v1alpha1.KindEndpointSlice, v1alpha1.CREMEndpointSlice{}},
	} {
		s := document.kind(kind.name)
		if s == nil {
			return "the API server does not know the kind " + kind.name + ": " + install
		}
		if field := missingField(s, reflect.TypeOf(kind.of), ""); field != "" {
			return "the API server's " + kind.name + " is too old, it has no " + field + ": " + install
		}
	}
	return ""
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

// missingField gives the path of the first field of a type that the schema lacks. Types of Kubernetes itself are not looked into.
func missingField(s *schema, t reflect.Type, path string) string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice {
			if s = s.Items; s == nil {
				return path + "[]"
			}
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeOf(v1alpha1.CREMNode{}).PkgPath() {
		return ""
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type == reflect.TypeOf(metav1.TypeMeta{}) || f.Type == reflect.TypeOf(metav1.ObjectMeta{}) {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		at := strings.TrimPrefix(fmt.Sprintf("%s.%s", path, name), ".")
		property := s.Properties[name]
		if property == nil {
			return at
		}
		if missing := missingField(property, f.Type, at); missing != "" {
			return missing
		}
	}
	return ""
}
