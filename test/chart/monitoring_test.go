// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// podMonitor and prometheusRule have the fields of the Prometheus operator's kinds that we use; others are refused by the strict decoder.
type podMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector            metav1.LabelSelector `json:"selector"`
		PodMetricsEndpoints []struct {
			Port        string `json:"port"`
			Interval    string `json:"interval"`
			Relabelings []struct {
				SourceLabels []string `json:"sourceLabels,omitempty"`
				TargetLabel  string   `json:"targetLabel"`
				Replacement  string   `json:"replacement,omitempty"`
			} `json:"relabelings"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

type prometheusRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []struct {
				Alert       string            `json:"alert"`
				Expr        string            `json:"expr"`
				For         string            `json:"for,omitempty"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

// TestMonitoringObjects: off unless wanted, well-formed, and the monitors choose the pods that there are by a port that they have.
func TestMonitoringObjects(t *testing.T) {
	for _, u := range render(t) {
		if u.GetKind() == "PodMonitor" || u.GetKind() == "PrometheusRule" || u.GetKind() == "ConfigMap" {
			t.Errorf("%s %s is there though nobody asked for it", u.GetKind(), u.GetName())
		}
	}
	all := render(t, append([]string{"monitoring.rules.runbookURL=https://wiki.example.com/crem"}, everything...)...)
	operator := as[appsv1.Deployment](t, find(t, all, "Deployment", "crem-operator")).Spec.Template
	agent := as[appsv1.DaemonSet](t, find(t, all, "DaemonSet", "crem-agent")).Spec.Template
	for name, pod := range map[string]struct {
		labels labels.Set
		port   string
	}{"crem-operator": {operator.Labels, operator.Spec.Containers[0].Ports[0].Name}, "crem-agent": {agent.Labels, agent.Spec.Containers[0].Ports[0].Name}} {
		m := as[podMonitor](t, find(t, all, "PodMonitor", name))
		selector, err := metav1.LabelSelectorAsSelector(&m.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		if !selector.Matches(pod.labels) || m.Spec.PodMetricsEndpoints[0].Port != pod.port {
			t.Errorf("%s: %v and port %s do not choose %v, %s", name, selector, m.Spec.PodMetricsEndpoints[0].Port, pod.labels, pod.port)
		}
		if m.Labels["team"] != "net" {
			t.Errorf("%s: labels %v", name, m.Labels)
		}
	}
	rules := as[prometheusRule](t, find(t, all, "PrometheusRule", "crem"))
	for _, g := range rules.Spec.Groups {
		for _, r := range g.Rules {
			if want := "https://wiki.example.com/crem/" + r.Alert + ".md"; r.Annotations["runbook_url"] != want {
				t.Errorf("%s: runbook %s", r.Alert, r.Annotations["runbook_url"])
			}
		}
	}
	text, _, _ := nested(find(t, all, "ConfigMap", "crem-dashboard").Object, "data", "crem.json")
	var dashboard map[string]any
	if err := json.Unmarshal([]byte(text.(string)), &dashboard); err != nil || dashboard["uid"] != "crem" {
		t.Errorf("dashboard %v, %v", dashboard["uid"], err)
	}
}
