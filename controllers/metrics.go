// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Metrics of the operator. Their number grows with domains, at most 16 of which can be on a node, never with nodes, pods or sites; series of a
// domain that is gone go with it.
var (
	writes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "crem_operator_writes_total", Help: "Requests that write to the API server, by kind of object and result.",
	}, []string{"kind", "result"})
	domainNodes = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "crem_operator_domain_nodes", Help: "Nodes of a domain by state; a node is counted in each state that it is in.",
	}, []string{"domain", "state"})
	stalledObjects = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "crem_operator_stalled_objects", Help: "Domains and profiles that need a person.",
	}, []string{"kind"})
	surveySeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "crem_operator_survey_seconds", Help: "Time to judge all nodes once.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
	})
	sliceAddresses = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "crem_operator_slice_addresses", Help: "Addresses of pods in all CREMEndpointSlice objects.",
	})
	podsCached = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "crem_operator_pods_cached", Help: "Pods that the operator holds addresses of.",
	})
)

func init() {
	metrics.Registry.MustRegister(writes, domainNodes, stalledObjects, surveySeconds, sliceAddresses, podsCached)
}

// count counts one write and gives its error.
func count(kind string, err error) error {
	result := "ok"
	if err != nil {
		result = "error"
	}
	writes.WithLabelValues(kind, result).Inc()
	return err
}

// export shows a survey.
func export(s survey, stalledDomains, stalledProfiles int) {
	domainNodes.Reset()
	for name, t := range s.domains {
		for state, n := range map[string]int32{"matched": t.matched, "rendered": t.rendered, "programmed": t.programmed, "ready": t.ready, "degraded": t.degraded, "failing": t.failing} {
			domainNodes.WithLabelValues(name, state).Set(float64(n))
		}
	}
	stalledObjects.WithLabelValues("CREMDomain").Set(float64(stalledDomains))
	stalledObjects.WithLabelValues("CREMProfile").Set(float64(stalledProfiles))
}
