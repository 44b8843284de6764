#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# generate-manifests.sh: what config/ and charts/ take from elsewhere. config/rbac comes from the kubebuilder markers of the programs; the
# charts' copies come from config/, so that every rule, policy, alert and CRD has one source.
set -euo pipefail
cd "$(dirname "$0")/.."
gen() { go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 "$@"; }
gen rbac:roleName=crem-operator paths=./controllers output:rbac:dir=config/rbac/operator
gen rbac:roleName=crem-agent paths=./agent/node output:rbac:dir=config/rbac/agent

files=charts/crem/files
mkdir -p $files/rbac $files/policies
cp config/rbac/operator/role.yaml $files/rbac/operator.yaml
cp config/rbac/agent/role.yaml $files/rbac/agent.yaml
cp config/rbac/people/roles.yaml $files/rbac/people.yaml
cp config/policies/agent_own_node.yaml config/policies/port_range.yaml $files/policies/
cp config/prometheus/rules.yaml config/prometheus/dashboard.json $files/

for crd in config/crd/bases/*.yaml; do
	! grep -n '{{' "$crd" || { echo "$crd holds {{, which a template cannot"; exit 1; }
	awk -v head='# Generated from config/crd/bases by hack/generate-manifests.sh. DO NOT EDIT.' '
		NR == 1 { print head }
		{ print }
		/^  annotations:$/ && !done { print "    {{- if .Values.keep }}\n    helm.sh/resource-policy: keep\n    {{- end }}"; done = 1 }
	' "$crd" >"charts/crem-crds/templates/$(basename "$crd" | sed 's/^crem.dev_//')"
done
