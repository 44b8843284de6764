#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh short|full: two real Kubernetes sites with the operator and the agents in them, RDMA between pods over a lossy link. See README.md.
#
# Exit status: 0 met, 1 a figure was missed, 75 this machine cannot do it or has not built Kubernetes yet (a line says why).
# KEEP=1 leaves the sites up.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
export CREM_KUBE_CACHE=${CREM_KUBE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/crem/kube}
K=$ROOT/test/lab/kube/kube.sh
B=$ROOT/build
HELM=${HELM:-${XDG_CACHE_HOME:-$HOME/.cache}/crem/helm}
P=${CREM_KUBE_PREFIX:-crem-}
SITES="east west"
NAMESPACE=crem-system
OUT=$B/e2e.json

cannot() { echo "e2e cannot run here: $*" >&2; exit 75; }
case ${1:-} in full | short) FORM=$1 ;; *) sed -n '3,6s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
[ "$(id -u)" = 0 ] || cannot "it makes network namespaces and needs root"
for p in kube-apiserver etcd kubectl kubelet kube-controller-manager kube-scheduler kube-proxy pause mkimg; do
	[ -x "$CREM_KUBE_CACHE/bin/$p" ] || cannot "$p is not built yet: make kube (about 20 minutes on two cores, once)"
done
[ -x "$HELM" ] || cannot "helm is not built yet: make kube"
for p in containerd runc conntrack nft jq curl; do command -v $p >/dev/null || cannot "$p is missing: test/lab/kube/kube.sh packages, jq and curl"; done
for p in crem-agent crem-operator kubectl-crem crem-rc crem-wan; do [ -x "$B/$p" ] || cannot "build/$p is missing: make build-lab"; done

TMP=$(mktemp -d)
clean() {
	local pid
	for pid in $(cat "$TMP/pids" 2>/dev/null); do kill "$pid" 2>/dev/null || true; done
	[ -n "${KEEP:-}" ] || "$K" down >/dev/null 2>&1 || true
	rm -rf "$TMP"
}
trap clean EXIT

. "$HERE/lib.sh"
for stage in "$HERE"/stages/*.sh; do . "$stage"; done

install
if [ "$FORM" = full ]; then upgrade; fi
policy
lossless_change
profile_change
rights
api_server_away
if [ "$FORM" = full ]; then
	rolling_update
	bad_upgrade
	power_loss
fi
at_rest
uninstall

jq -s . "$TMP/figures" >"$OUT"
step "results: build/e2e.json"
exit "$missed"
