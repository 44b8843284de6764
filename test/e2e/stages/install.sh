# SPDX-License-Identifier: Apache-2.0
# Two sites, a line of 20 ms and 1 % loss, and the chart by helm in both: in the full form an older release, which the stage upgrade upgrades.

install() {
	local s pids=() j chart=$ROOT/charts/crem tag=dev
	for s in $SITES; do "$K" up "$s" "$(nodes_of "$s")" >"$TMP/$s.up" 2>&1 & pids+=($!); done
	for j in "${pids[@]}"; do wait "$j" || { cat "$TMP"/*.up; fail "a site does not come up"; }; done
	step "both sites are up"
	line_up
	if [ "$FORM" = full ] && older_release; then chart=$OLDER/charts/crem tag=older; fi
	for s in $SITES; do
		"$K" load "$s" crem/crem:dev "crem-agent=$B/crem-agent" "crem-operator=$B/crem-operator" >/dev/null
		"$K" load "$s" crem/endpoint:dev "pause=$CREM_KUBE_CACHE/bin/pause" >/dev/null
		[ $tag = dev ] || "$K" load "$s" crem/crem:older "crem-agent=$OLDER/crem-agent" "crem-operator=$OLDER/crem-operator" >/dev/null
		kube "$s" label node "$s-n1" crem.dev/gateway= lab/agent= >/dev/null
		wait_for 60 kube "$s" get serviceaccount default # pods cannot be made without
		kube "$s" apply -f "$HERE/endpoints.yaml" >/dev/null
	done
	step "images are loaded, the link has 20 ms and 1 % loss"
	for s in $SITES; do interfaces "$s" >"$TMP/$s.interfaces"; done
	for s in $SITES; do release "$chart" $tag "$s"; done
	for s in $SITES; do realtime "$s"; done
	step "the chart is installed in both sites"
}

# release CHART TAG SITE [ARGUMENTS...] is the one command that installs and upgrades. helm says in SITE.helm why it failed.
try_release() {
	helm "$3" upgrade --install crem "$1" -n "$NAMESPACE" --create-namespace --set image.repository=crem/crem --set "image.tag=$2" --set image.pullPolicy=Never \
		--set crds.enabled=true --set agent.realtimeWorkers=true --set agent.minReadySeconds=7 --set 'agent.nodeSelector.lab/agent=' --wait --timeout 120s "${@:4}" >"$TMP/$3.helm" 2>&1
}
release() { try_release "$@" || { cat "$TMP/$3.helm"; fail "helm upgrade --install in $3"; }; }
# roll_back SITE
roll_back() { helm "$1" rollback crem -n "$NAMESPACE" --wait --timeout 120s >"$TMP/$1.helm" 2>&1 || { cat "$TMP/$1.helm"; fail "helm rollback in $1"; }; }

# nodes_of gives how many nodes a site has. Where the gateway loses power, an operator must be somewhere else.
nodes_of() { [ "$FORM $1" = "full west" ] && echo 2 || echo 1; }

# interfaces lists a node's interfaces and their queueing disciplines, but for those of pods, which come and go, and of the CNI, which come with the first pod.
interfaces() { on_node "$1" bash -c 'ip -o link | sed "s/^[0-9]*: \([^:@]*\).*/\1/"; tc qdisc | sed "s/ refcnt.*//; s/qdisc \([a-z_]*\) [0-9a-f]*:/\1/"' | grep -vE 'veth|cni0' | sort; }
