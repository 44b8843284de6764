// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
)

// ErrNotWell means that something does not work; what it is was said.
var ErrNotWell = errors.New("the installation is not well: see above")

// Verify waits until all that is installed works. When the time is over it says what does not, and gives ErrNotWell.
func Verify(ctx context.Context, c client.Client, namespace string, timeout time.Duration, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var faults []string // of the last look that the API server answered
	for failed := 1; ; {
		well, found, err := examine(ctx, c, namespace)
		switch {
		case err != nil:
			failed++
		case len(found) == 0:
			_, err = fmt.Fprintln(out, well)
			return err //nolint:wrapcheck // of the output
		default:
			faults, failed = found, 0
		}
		select {
		case <-ctx.Done():
			if failed > 1 { // one look fails because the time is over in the midst of it
				return err
			}
			for _, f := range faults {
				if _, err := fmt.Fprintln(out, f); err != nil {
					return err //nolint:wrapcheck // of the output
				}
			}
			return ErrNotWell
		case <-time.After(pollPeriod):
		}
	}
}

// examine looks once. well is the sentence for the case that there is no fault.
func examine(ctx context.Context, c client.Client, namespace string) (well string, faults []string, err error) {
	leases, nodes := &coordinationv1.LeaseList{}, &v1alpha1.CREMNodeList{}
	domains, profiles := &v1alpha1.CREMDomainList{}, &v1alpha1.CREMProfileList{}
	agents := client.MatchingLabels{v1alpha1.ComponentLabel: v1alpha1.ComponentAgent}
	err = errors.Join(c.List(ctx, leases, client.InNamespace(namespace), agents), c.List(ctx, nodes), c.List(ctx, domains), c.List(ctx, profiles))
	if err != nil {
		return "", nil, fmt.Errorf("look at the cluster: %w", err)
	}
	fresh := map[string]bool{}
	for i := range leases.Items {
		l := &leases.Items[i]
		if isFresh(l) {
			fresh[l.Name] = true
		} else {
			faults = append(faults, fmt.Sprintf("The agent of node %s does not report: see its pod in namespace %s.", l.Name, namespace))
		}
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if _, unused := n.Annotations[v1alpha1.UnusedSinceAnnotation]; unused {
			continue
		}
		if f := notReady("Node", n.Name, n.Generation, n.Status.Conditions); f != "" {
			faults = append(faults, f)
		} else if !fresh[n.Name] {
			faults = append(faults, fmt.Sprintf("Node %s has no agent that reports: does agent.nodeSelector choose it?", n.Name))
		}
	}
	for i := range domains.Items {
		d := &domains.Items[i]
		faults = append(faults, present(notReady("CREMDomain", d.Name, d.Generation, d.Status.Conditions))...)
	}
	for i := range profiles.Items {
		p := &profiles.Items[i]
		faults = append(faults, present(notReady("CREMProfile", p.Name, p.Generation, p.Status.Conditions))...)
	}
	if len(domains.Items) == 0 {
		return fmt.Sprintf("%d agents report. There is no CREMDomain yet, so nothing is protected: kubectl apply -f domain.yaml.", len(fresh)), faults, nil
	}
	return fmt.Sprintf("%d agents report, %d domains on %d nodes are ready.", len(fresh), len(domains.Items), len(nodes.Items)), faults, nil
}

func isFresh(l *coordinationv1.Lease) bool {
	return l.Spec.RenewTime != nil && l.Spec.LeaseDurationSeconds != nil &&
		time.Since(l.Spec.RenewTime.Time) < time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second
}

// notReady says why an object is not ready, nothing if it is.
func notReady(kind, name string, generation int64, conditions []metav1.Condition) string {
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	switch {
	case ready == nil:
		return fmt.Sprintf("%s %s was not looked at yet: does the operator run?", kind, name)
	case ready.ObservedGeneration < generation:
		return fmt.Sprintf("%s %s changed, and its state is that of before: does the operator run?", kind, name)
	case ready.Status != metav1.ConditionTrue:
		return fmt.Sprintf("%s %s is not ready (%s): %s", kind, name, ready.Reason, ready.Message)
	}
	return ""
}

func present(s string) []string {
	return slices.DeleteFunc([]string{s}, func(s string) bool { return s == "" })
}
