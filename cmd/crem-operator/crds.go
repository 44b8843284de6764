// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"crem.dev/crem/internal/served"
)

// How often the operator looks whether its custom resource definitions have come, and whether others have.
const (
	crdPeriod   = 5 * time.Second
	otherPeriod = time.Minute
)

// shownFields is how many missing fields are named.
const shownFields = 10

// waitForCRDs returns when the API server knows the kinds, with the fields that it knows. Until then it says what is missing, once for each answer, instead of
// ending and being started again for ever. It gives nil when the context ends first.
func waitForCRDs(ctx context.Context, log logr.Logger, client rest.Interface, health *healthServer) *served.Fields {
	said := ""
	for {
		fields, err := served.Read(ctx, client)
		if err == nil {
			return fields
		}
		why := err.Error()
		health.set(why)
		if why != said && ctx.Err() == nil {
			log.Info("Waiting for the custom resource definitions of CREM", "because", why)
			said = why
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(crdPeriod):
		}
	}
}

// untilOthers returns when the API server lacks other fields than it did, or the context ends.
func untilOthers(ctx context.Context, log logr.Logger, client rest.Interface, fields *served.Fields, period time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(period):
		}
		now, err := served.Read(ctx, client)
		if err == nil && !slices.Equal(now.Missing(), fields.Missing()) {
			log.Info("The custom resource definitions are others now, the operator ends to be started anew", "missing", named(now))
			return
		}
	}
}

// sayMissing says which fields are not written, if there are any.
func sayMissing(log logr.Logger, fields *served.Fields) {
	if len(fields.Missing()) > 0 {
		log.Info("The custom resource definitions are older than this operator, which works without the fields that they lack", "missing", named(fields), "todo", served.Install)
	}
}

func named(fields *served.Fields) string {
	list := fields.Missing()
	if len(list) > shownFields {
		list = append(slices.Clone(list[:shownFields]), "and more")
	}
	return strings.Join(list, ", ")
}

// describer is a client for what an API server says of itself.
func describer(cfg *rest.Config) (rest.Interface, error) {
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return client.RESTClient(), nil
}
