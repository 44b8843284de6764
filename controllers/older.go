// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/internal/served"
)

// olderServer writes to an API server whose custom resource definitions may be older than this operator: without the fields that it does not know.
type olderServer struct {
	client.Client
	fields *served.Fields
}

// Apply implements client.Client.
func (c olderServer) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	kept, err := keep(c.fields, obj)
	if err != nil {
		return err
	}
	return c.Client.Apply(ctx, kept, opts...)
}

// Status implements client.Client.
func (c olderServer) Status() client.SubResourceWriter {
	return olderStatus{c.Client.Status(), c.fields}
}

type olderStatus struct {
	client.SubResourceWriter
	fields *served.Fields
}

// Apply implements client.SubResourceWriter.
func (c olderStatus) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	kept, err := keep(c.fields, obj)
	if err != nil {
		return err
	}
	return c.SubResourceWriter.Apply(ctx, kept, opts...)
}

// keep leaves out what the API server does not know.
func keep(fields *served.Fields, obj runtime.ApplyConfiguration) (runtime.ApplyConfiguration, error) {
	if len(fields.Missing()) == 0 {
		return obj, nil
	}
	raw, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("leave out what the API server does not know: %w", err)
	}
	if raw, err = fields.Keep(raw); err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("leave out what the API server does not know: %w", err)
	}
	return client.ApplyConfigurationFromUnstructured(u), nil
}
