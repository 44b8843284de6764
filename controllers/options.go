// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"time"

	"crem.dev/crem/internal/served"
	"crem.dev/crem/internal/sitehealth"
)

// Options are the times and places that the controllers work by. Defaults gives those of an ordinary cluster.
type Options struct {
	// Namespace of the operator, in which the Leases of the agents are.
	Namespace string
	// NodeDelay is how long changes that concern one node are gathered before it is rendered.
	NodeDelay time.Duration
	// SliceDelay is how long changes of pods are gathered before their profile's slices are written.
	SliceDelay time.Duration
	// StatusQuiet and StatusMost bound the wait before statuses are computed again: nothing changed for StatusQuiet, or StatusMost has passed.
	StatusQuiet, StatusMost time.Duration
	// Hold is how long a node must be well before it is shown so after it failed; worse is shown at once.
	Hold time.Duration
	// SitePeriod is the least time between two changes of what a domain's status shows of its other sites.
	SitePeriod time.Duration
	// Served are the fields that the API server knows; nil: all.
	Served *served.Fields
	// CollectAfter is how long a CREMNode that nothing needs stays; 0: for ever.
	CollectAfter time.Duration
}

// Defaults gives the options of an ordinary cluster.
func Defaults(namespace string) Options {
	return Options{
		Namespace:    namespace,
		NodeDelay:    200 * time.Millisecond,
		SliceDelay:   500 * time.Millisecond,
		StatusQuiet:  time.Second,
		StatusMost:   5 * time.Second,
		Hold:         5 * time.Second,
		SitePeriod:   sitehealth.Period,
		CollectAfter: 30 * time.Minute,
	}
}
