#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# verify-manifests.sh: rights, CRDs and the chart's copies are what their sources say; the charts pass helm lint; charts and config/ agree, and
# a real API server takes them; alerts, dashboard and GitOps examples hold. Changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
fail=0
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
hack/generate-manifests.sh "$new" || fail=1
(cd "$new" && find . -type f) | while read -r f; do
	diff -u "$f" "$new/$f" || echo "$f" >>"$new.stale"
done
if [ -e "$new.stale" ]; then
	rm "$new.stale"
	echo "verify: generated manifests are out of date: hack/generate-manifests.sh"
	fail=1
fi
[ "$(ls charts/crem-crds/templates)" = "$(ls "$new/charts/crem-crds/templates")" ] || { echo "verify: charts/crem-crds has a template without a CRD in config/crd/bases"; fail=1; }

hack/tools/kube/build.sh
helm=${XDG_CACHE_HOME:-$HOME/.cache}/crem/helm
"$helm" lint --strict charts/crem charts/crem-crds || { echo "verify: helm lint found faults"; fail=1; }
for program in promtool lua5.1:lua5.4:lua; do
	found=
	for name in ${program//:/ }; do command -v "$name" >/dev/null && found=$name; done
	[ -n "$found" ] || echo "verify: LEFT OUT: no ${program%%:*}; apt-get install $([ "$program" = promtool ] && echo prometheus || echo lua5.1) for the tests that need it"
done
assets=${KUBEBUILDER_ASSETS:-${XDG_CACHE_HOME:-$HOME/.cache}/crem/kube/bin}
[ -x "$assets/kube-apiserver" ] || echo "verify: LEFT OUT: no kube-apiserver in $assets, so no server-side dry run; test/lab/kube/kube.sh build kube-apiserver etcd kubectl"
CREM_REQUIRE_HELM=1 CGO_ENABLED=0 go test -vet=off -count=1 ./test/chart ./test/monitoring ./test/gitops || fail=1
exit $fail
