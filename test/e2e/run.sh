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
TMP=$(mktemp -d)
OUT=$B/e2e.json
NAMESPACE=crem-system

cannot() { echo "e2e cannot run here: $*" >&2; exit 75; }
now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }
T0=$(now)
step() { local ms=$(($(now) - T0)); printf '%5d.%d s  %s\n' $((ms / 1000)) $((ms % 1000 / 100)) "$*"; }
missed=0
figure() { # NAME VALUE UNIT GOAL RELATION: notes a figure, and whether it is as asked
	local met
	met=$(awk -v v="$2" -v g="$4" "BEGIN {print (v $5 g) ? \"true\" : \"false\"}")
	printf '{"name": "%s", "value": %s, "unit": "%s", "goal": "%s %s", "met": %s}\n' "$1" "$2" "$3" "$5" "$4" "$met" >>"$TMP/figures"
	step "$1: $2 $3 (asked: $5 $4)$([ "$met" = true ] || echo '  MISSED')"
	[ "$met" = true ] || missed=1
}
fail() {
	step "FAILED: $*"
	for s in $SITES; do
		echo "--- $s"
		kube "$s" -n "$NAMESPACE" get pods -o wide 2>&1 | tail -n 20 || true
		kube "$s" get cremdomains,cremnodes -o wide 2>&1 | tail -n 20 || true
		kube "$s" -n "$NAMESPACE" logs -l app.kubernetes.io/component=agent --tail=15 2>&1 || true
		kube "$s" -n "$NAMESPACE" logs -l app.kubernetes.io/component=operator --tail=15 2>&1 || true
	done
	exit 1
}
wait_for() { # SECONDS COMMAND...: the time in milliseconds until it succeeds
	local start end=$(($(now) + $1 * 1000)); shift
	start=$(now)
	until "$@" >/dev/null 2>&1; do [ "$(now)" -lt "$end" ] || fail "no success: $*"; sleep 0.1; done
	WAITED=$(($(now) - start))
}
kube() { local s=$1; shift; "$K" kubectl "$s" "$@"; }
config_of() { echo "$CREM_KUBE_CACHE/sites/$1/admin.kubeconfig"; }
crem() { local s=$1; shift; KUBECONFIG=$(config_of "$s") "$K" ops "$B/kubectl-crem" "$@"; }
helm() { local s=$1; shift; KUBECONFIG=$(config_of "$s") "$K" ops "$HELM" "$@"; }

clean() {
	local pid
	for pid in $(cat "$TMP/pids" 2>/dev/null); do kill "$pid" 2>/dev/null || true; done
	[ -n "${KEEP:-}" ] || "$K" down >/dev/null 2>&1 || true
	rm -rf "$TMP"
}

# ---- what must be there
case ${1:-} in full | short) FORM=$1 ;; *) sed -n '3,6s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
[ "$(id -u)" = 0 ] || cannot "it makes network namespaces and needs root"
for p in kube-apiserver etcd kubectl kubelet kube-controller-manager kube-scheduler kube-proxy pause mkimg; do
	[ -x "$CREM_KUBE_CACHE/bin/$p" ] || cannot "$p is not built yet: make kube (about 20 minutes on two cores, once)"
done
[ -x "$HELM" ] || cannot "helm is not built yet: make kube"
for p in containerd runc conntrack nft jq; do command -v $p >/dev/null || cannot "$p is missing: test/lab/kube/kube.sh packages, and jq"; done
for p in crem-agent crem-operator kubectl-crem crem-rc crem-wan; do [ -x "$B/$p" ] || cannot "build/$p is missing: make build-lab"; done

trap clean EXIT

# ---- two sites and a link
pids=()
for s in $SITES; do "$K" up "$s" >"$TMP/$s.up" 2>&1 & pids+=($!); done
for j in "${pids[@]}"; do wait "$j" || { cat "$TMP"/*.up; fail "a site does not come up"; }; done
step "both sites are up"
"$K" uplink >/dev/null
for s in $SITES; do ip -n "${P}wan" link set "$s" nomaster; done
ip netns exec "${P}wan" "$B/crem-wan" -a east -b west -delay 10ms -rate 400000000 -queue 4000000 -loss 0.01 -protected-only -crem-port 52000 -control "$TMP/wan.sock" >"$TMP/wan.log" 2>&1 &
echo $! >>"$TMP/pids"
for s in $SITES; do
	"$K" load "$s" crem/crem:dev "crem-agent=$B/crem-agent" "crem-operator=$B/crem-operator" >/dev/null
	"$K" load "$s" crem/endpoint:dev "pause=$CREM_KUBE_CACHE/bin/pause" >/dev/null
	kube "$s" label node "$s-n1" crem.dev/gateway= >/dev/null
	kube "$s" apply -f "$HERE/endpoints.yaml" >/dev/null
done
step "images are loaded, the link has 20 ms and 1 % loss"

# ---- installation
for s in $SITES; do
	helm "$s" upgrade --install crem "$ROOT/charts/crem" -n "$NAMESPACE" --create-namespace --set image.repository=crem/crem --set image.tag=dev \
		--set image.pullPolicy=Never --set crds.enabled=true --wait --timeout 120s >"$TMP/$s.helm" 2>&1 || { cat "$TMP/$s.helm"; fail "helm install in $s"; }
done
step "the chart is installed in both sites"
for s in $SITES; do kube "$s" wait --for=condition=Ready pod/endpoint --timeout=60s >/dev/null || fail "the endpoint of $s"; done
address() { kube "$1" get pod endpoint -o jsonpath='{.status.podIP}'; }
E=$(address east) W=$(address west)
hop() { "$K" node "$1" n1 cat /sys/class/net/cni0/address; }
HE=$(hop east) HW=$(hop west)
step "endpoints are $E and $W"
COMMON="-if eth0 -mtu 1024 -size 262144 -window 1024"

# ---- traffic, and the policy under it. The endpoints run in the pods' networks but are not started by the API server, which goes away later on.
network() { # SITE ADDRESS: the network namespace of a pod
	"$K" node "$1" n1 bash -c 'for n in $(ls /run/netns); do ip -n "$n" -o addr show dev eth0 2>/dev/null | grep -q " $1/" && echo "$n"; done; true' - "$2"
}
NE=$(network east "$E") NW=$(network west "$W")
[ -n "$NE" ] && [ -n "$NW" ] || fail "the networks of the endpoints"
"$K" node west n1 ip netns exec "$NW" "$B/crem-rc" -role responder -local "$W" -remote "$E" -next-hop "$HW" $COMMON >"$TMP/responder.json" 2>"$TMP/responder.err" &
echo $! >>"$TMP/pids"
sleep 1
transfer() { # SECONDS: a transfer of 160 Mbit/s, 20,000 packets a second
	"$K" node east n1 ip netns exec "$NE" "$B/crem-rc" -role requester -local "$E" -remote "$W" -next-hop "$HE" $COMMON -rate 160000000 -warmup 1s -duration "$1s"
}
LONG=150 # longer than all that is done under it
transfer "$LONG" >"$TMP/requester.json" 2>"$TMP/requester.err" &
TRANSFER=$!
sleep 2
# What the agents say is asked on the nodes' sockets and what the API servers say is watched: asking them again and again would take
# the processors that the answer needs.
flows() { # SITE ROLE
	"$K" node "$1" n1 "$B/kubectl-crem" flows --socket /run/crem/agent.sock --role "$2" -o json
}
in_both() { # COMMAND...: with each site as the last argument, at the same time
	local s pids=()
	for s in $SITES; do "$@" "$s" >/dev/null & pids+=($!); done
	for s in "${pids[@]}"; do wait "$s" || fail "$*"; done
}
apply() { kube "$1" apply -k "$ROOT/config/samples/two-sites/$1"; }
start=$(now)
in_both apply
protected() { flows east csf | jq -e '[.[] | select(.state == "Protecting")] | length > 0'; }
wait_for 30 protected
figure "apply to first protected packet" "$(awk "BEGIN {print ($(now) - $start) / 1000}")" s 5 "<="
domain_ready() { kube "$1" wait --for=condition=Ready cremdomain --all --timeout=1s; }
for s in $SITES; do wait_for 30 domain_ready "$s"; done
step "the domains are Ready"
crem east flows --node east-n1 | grep -q Protecting || fail "kubectl crem flows does not show the flow"
crem east status | grep -q aidc-backbone || fail "kubectl crem status does not show the domain"

# ---- a profile changes under load
restored() { flows west crf | jq '[.[].restored] | add // 0'; }
before=$(restored)
set_k() { kube "$1" patch cremprofile standard --type=merge -p '{"spec":{"k":48}}'; }
watch_generations() { # SITE: notes when each generation of the node's object was seen in force
	kube "$1" get cremnode "$1-n1" --watch -o jsonpath='{.metadata.generation} {.status.appliedGeneration}{"\n"}' | while read -r generation applied; do
		[ "$generation" != "$applied" ] || echo "$(now) $applied"
	done >"$TMP/$1.generations"
}
for s in $SITES; do watch_generations "$s" & echo $! >>"$TMP/pids"; done
newest() { tail -n 1 "$TMP/$1.generations" | cut -d ' ' -f 2; }
for s in $SITES; do wait_for 30 test -s "$TMP/$s.generations"; done
old_east=$(newest east) old_west=$(newest west)
start=$(now)
in_both set_k
reported() { [ "$(newest east)" -gt "$old_east" ] && [ "$(newest west)" -gt "$old_west" ]; }
wait_for 15 reported
last=$(cat "$TMP"/*.generations | sort -n | tail -n 1 | cut -d ' ' -f 1)
figure "profile change to every node's report" "$(awk "BEGIN {print ($last - $start) / 1000}")" s 3 "<="
k48() { flows east csf | jq -e '[.[] | select(.state == "Protecting" and .k == 48)] | length > 0'; }
wait_for 5 k48
step "the running flow has the new k"

# ---- an agent's rights end at its node
token=$(kube east -n "$NAMESPACE" create token crem-agent --bound-object-kind Node --bound-object-name east-n1 2>/dev/null || true)
[ -n "$token" ] || token=$(kube east -n "$NAMESPACE" create token crem-agent)
kube east apply -f - >/dev/null <<-Y
	apiVersion: crem.dev/v1alpha1
	kind: CREMNode
	metadata: {name: foreign}
	spec: {}
Y
if kube east --token "$token" --kubeconfig /dev/null --server https://10.1.0.1:6443 --insecure-skip-tls-verify patch cremnode foreign --subresource=status --type=merge -p '{"status":{"agentVersion":"x"}}' >/dev/null 2>"$TMP/denied"; then
	fail "an agent's token may write the status of another node"
fi
figure "an agent's token on another node's object, refused" 1 times 1 "=="
kube east delete cremnode foreign --wait=false >/dev/null

# ---- the API server goes away, and the agent is killed meanwhile
"$K" kill east cp
"$K" node east n1 pkill -9 -x crem-agent # each node has processes of its own
step "the API server of east is gone, its agent was killed"
wait_for 60 protected
figure "agent killed without an API server, until it protects again" "$(awk "BEGIN {print $WAITED / 1000}")" s 30 "<="
"$K" start east cp

# ---- what became of the traffic
wait "$TRANSFER" || fail "the transfer: $(cat "$TMP/requester.err")"
jq -c '{goodput_bps, sent_over_needed, naks, timeouts, messages}' "$TMP/requester.json" | while read -r line; do step "transfer: $line"; done
after=$(restored)
figure "packets restored in west" "$((after > before ? after - before : after))" packets 100 ">="
figure "corrupt messages" "$(jq '.corrupt // 0' "$TMP/requester.json")" messages 0 "=="
figure "sent over needed" "$(jq .sent_over_needed "$TMP/requester.json")" "" 1.1 "<="

# ---- at rest nothing is written but Leases
wait_for 60 domain_ready east
writes() {
	kube "$1" get --raw /metrics | awk '/^apiserver_request_total\{/ && /verb="(POST|PUT|PATCH|DELETE|APPLY)"/ && (/group="crem.dev"/ || (/resource="events"/ && /group="events.k8s.io"/)) {n += $NF} END {print n + 0}'
}
SECONDS_AT_REST=$([ "$FORM" = full ] && echo 60 || echo 15)
sleep 10
n=$(writes west); sleep "$SECONDS_AT_REST"
figure "API writes in $SECONDS_AT_REST s at rest" "$(($(writes west) - n))" writes 0 "=="

# ---- uninstallation
for s in $SITES; do helm "$s" uninstall crem -n "$NAMESPACE" --wait --timeout 120s >"$TMP/$s.helm" 2>&1 || { cat "$TMP/$s.helm"; fail "helm uninstall in $s"; }; done
left() { "$K" node "$1" n1 find /sys/fs/bpf -path '*crem*' | wc -l; }
figure "pins left on the nodes" "$(($(left east) + $(left west)))" files 0 "=="
step "uninstalled"

jq -s . "$TMP/figures" >"$OUT"
step "results: build/e2e.json"
exit "$missed"
