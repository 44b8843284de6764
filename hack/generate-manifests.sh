#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# generate-manifests.sh [OUT]: what config/ and charts/ take from elsewhere, written below OUT (default: the repository). config/rbac comes from
# the kubebuilder markers of the programs; the charts' copies come from config/, so that every right, policy, alert and CRD has one source.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-.}
files=$out/charts/crem/files crds=$out/charts/crem-crds/templates
mkdir -p "$files/rbac" "$files/policies" "$crds" "$out/config/rbac/operator" "$out/config/rbac/agent"
gen() { go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 "$@"; }
gen rbac:roleName=crem-operator paths=./controllers output:rbac:dir="$out/config/rbac/operator"
gen rbac:roleName=crem-agent paths=./agent/node output:rbac:dir="$out/config/rbac/agent"

cp "$out/config/rbac/operator/role.yaml" "$files/rbac/operator.yaml"
cp "$out/config/rbac/agent/role.yaml" "$files/rbac/agent.yaml"
cp config/rbac/people/roles.yaml "$files/rbac/people.yaml"
cp config/policies/agent_own_node.yaml config/policies/port_range.yaml "$files/policies/"
cp config/prometheus/rules.yaml config/prometheus/dashboard.json "$files/"

for crd in config/crd/bases/*.yaml; do
	! grep -n '{{' "$crd" || { echo "$crd holds {{, which a template cannot"; exit 1; }
	awk -v head='# Generated from config/crd/bases by hack/generate-manifests.sh. DO NOT EDIT.' '
		NR == 1 { print head }
		{ print }
		/^  annotations:$/ && !done { print "    {{- if .Values.keep }}\n    helm.sh/resource-policy: keep\n    {{- end }}"; done = 1 }
	' "$crd" >"$crds/$(basename "$crd" | sed 's/^crem.dev_//')"
done
