// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/served"
)

// One agent's share of the API server: a few requests a second at the most, whatever happens on the node.
const (
	clientQPS      = 5
	clientBurst    = 10
	requestTimeout = 10 * time.Second
)

const (
	resourceNodes  = "cremnodes"
	resourceSlices = "cremendpointslices"
	resourceLeases = "leases"
	resourceEvents = "events"
)

// client is the API server as an agent uses it.
type client struct {
	crem, leases, events rest.Interface
}

// newClient makes no connection.
func newClient(cfg *rest.Config, version string) (*client, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := coordinationv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := eventsv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	of := func(gv schema.GroupVersion) (rest.Interface, error) {
		c := rest.CopyConfig(cfg)
		c.APIPath, c.GroupVersion, c.NegotiatedSerializer = "/apis", &gv, codecs
		c.ContentType = runtime.ContentTypeJSON
		c.QPS, c.Burst, c.UserAgent = clientQPS, clientBurst, v1alpha1.FieldManagerAgent+"/"+version
		return rest.RESTClientFor(c)
	}
	crem, err := of(v1alpha1.GroupVersion)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	leases, err := of(coordinationv1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	events, err := of(eventsv1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return &client{crem: crem, leases: leases, events: events}, nil
}

// statusPatch is the part of a CREMNode that an agent owns.
type statusPatch struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        patchMeta               `json:"metadata"`
	Status          v1alpha1.CREMNodeStatus `json:"status"`
}

type patchMeta struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid,omitempty"` // another object of this name is refused
}

// applyStatus writes the status of the CREMNode with this UID, as far as the API server knows its fields, and gives the object as it is then.
func (c *client) applyStatus(ctx context.Context, name string, uid types.UID, status *v1alpha1.CREMNodeStatus, fields *served.Fields) (*v1alpha1.CREMNode, error) {
	body, err := json.Marshal(statusPatch{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindNode},
		Metadata: patchMeta{Name: name, UID: uid}, Status: *status,
	})
	if err != nil {
		return nil, err
	}
	if body, err = fields.Keep(body); err != nil {
		return nil, err
	}
	out := new(v1alpha1.CREMNode)
	return out, apply(ctx, c.crem, body, out, resourceNodes, "", name, "status")
}

// apply is one server-side apply. The agent is the only one that may write these fields, so it takes them back from whoever wrote them.
func apply(ctx context.Context, c rest.Interface, body []byte, into runtime.Object, resource, namespace, name string, sub ...string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	force := true
	return c.Patch(types.ApplyPatchType).NamespaceIfScoped(namespace, namespace != "").Resource(resource).Name(name).SubResource(sub...).
		VersionedParams(&metav1.PatchOptions{FieldManager: v1alpha1.FieldManagerAgent, Force: &force}, metav1.ParameterCodec).Body(body).Do(ctx).Into(into)
}

// leasePatch is the whole Lease.
type leasePatch struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        leaseMeta                `json:"metadata"`
	Spec            coordinationv1.LeaseSpec `json:"spec"`
}

type leaseMeta struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
}

// renewLease tells that the node's agent lives.
func (c *client) renewLease(ctx context.Context, namespace, node string, now time.Time) error {
	seconds, renewed := int32(v1alpha1.LeaseDuration/time.Second), metav1.NewMicroTime(now)
	body, err := json.Marshal(leasePatch{
		TypeMeta: metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		Metadata: leaseMeta{Name: node, Namespace: namespace, Labels: map[string]string{v1alpha1.ComponentLabel: v1alpha1.ComponentAgent}},
		Spec:     coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
	})
	if err != nil {
		return err
	}
	return apply(ctx, c.leases, body, new(coordinationv1.Lease), resourceLeases, namespace, node)
}
