// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"crem.dev/crem/api/v1alpha1"
)

// driftEvents is the least time between two events about drift: who takes things away again and again is told of often enough.
const driftEvents = time.Minute

// What the fields of an event may hold, in octets.
const (
	mostNote     = 1024
	mostName     = 253
	mostInstance = 128
)

func logDrift(log logr.Logger, found []string) {
	for _, text := range found {
		log.Info("Somebody else changed the data path in the kernel, it is repaired", "found", text)
	}
}

// Drifted logs what somebody else had changed in the kernel, and has an event written about the CREMNode. It may be called at any time and never blocks.
func (c *Cluster) Drifted(found []string) {
	logDrift(c.log, found)
	select {
	case c.drifts <- found:
	default: // one is waiting already
	}
}

// tellDrifts writes events until ctx ends.
func (c *Cluster) tellDrifts(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case found := <-c.drifts:
			d := c.inForce()
			if d == nil || d.UID == "" {
				continue
			}
			if err := c.client.driftEvent(ctx, c.o.Node, d.UID, found, time.Now()); err != nil && ctx.Err() == nil {
				c.log.Info("No event written about what was repaired", "error", err.Error())
			}
			sleep(ctx, driftEvents)
		}
	}
}

// driftEvent writes an event about the node's CREMNode.
func (c *client) driftEvent(ctx context.Context, node string, uid types.UID, found []string, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	note := "Somebody else changed the data path in the kernel, it is repaired: " + strings.Join(found, "; ")
	stamp := fmt.Sprintf(".%x", now.UnixNano())
	e := &eventsv1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: eventsv1.SchemeGroupVersion.String(), Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: cutName(node, mostName-len(stamp)) + stamp}, // where events of objects without a namespace are
		EventTime:  metav1.NewMicroTime(now), ReportingController: v1alpha1.FieldManagerAgent, ReportingInstance: cut(node, mostInstance),
		Action: "RepairDrift", Reason: v1alpha1.ReasonDriftRepaired, Type: corev1.EventTypeWarning, Note: cut(note, mostNote),
		Regarding: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindNode, Name: node, UID: uid},
	}
	return c.events.Post().Namespace(metav1.NamespaceDefault).Resource(resourceEvents).Body(e).Do(ctx).Error()
}

// cutName takes off what is too long for a name, which then still ends as one may.
func cutName(s string, most int) string { return strings.TrimRight(s[:min(len(s), most)], ".-") }
