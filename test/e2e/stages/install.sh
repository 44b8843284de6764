# SPDX-License-Identifier: Apache-2.0
# Two sites, a line of 20 ms and 1 % loss, and the chart by helm in both.

install() {
	local s pids=() j
	for s in $SITES; do "$K" up "$s" "$(nodes_of "$s")" >"$TMP/$s.up" 2>&1 & pids+=($!); done
	for j in "${pids[@]}"; do wait "$j" || { cat "$TMP"/*.up; fail "a site does not come up"; }; done
	step "both sites are up"
	line_up
	for s in $SITES; do
		"$K" load "$s" crem/crem:dev "crem-agent=$B/crem-agent" "crem-operator=$B/crem-operator" >/dev/null
		"$K" load "$s" crem/endpoint:dev "pause=$CREM_KUBE_CACHE/bin/pause" >/dev/null
		kube "$s" label node "$s-n1" crem.dev/gateway= >/dev/null
		wait_for 60 kube "$s" get serviceaccount default # pods cannot be made without
		kube "$s" apply -f "$HERE/endpoints.yaml" >/dev/null
	done
	step "images are loaded, the link has 20 ms and 1 % loss"
	for s in $SITES; do interfaces "$s" >"$TMP/$s.interfaces"; done
	for s in $SITES; do
		helm "$s" upgrade --install crem "$ROOT/charts/crem" -n "$NAMESPACE" --create-namespace --set image.repository=crem/crem --set image.tag=dev \
			--set image.pullPolicy=Never --set crds.enabled=true --set agent.realtimeWorkers=true --set 'agent.nodeSelector.crem\.dev/gateway=' --wait --timeout 120s >"$TMP/$s.helm" 2>&1 || { cat "$TMP/$s.helm"; fail "helm install in $s"; }
	done
	for s in $SITES; do realtime "$s"; done
	step "the chart is installed in both sites"
}

# nodes_of gives how many nodes a site has. Where the gateway loses power, an operator must be somewhere else.
nodes_of() { [ "$FORM $1" = "full west" ] && echo 2 || echo 1; }

# interfaces lists a node's interfaces and their queueing disciplines, but for those of pods, which come and go, and of the CNI, which come with the first pod.
interfaces() { on_node "$1" bash -c 'ip -o link | sed "s/^[0-9]*: \([^:@]*\).*/\1/"; tc qdisc | sed "s/ refcnt.*//; s/qdisc \([a-z_]*\) [0-9a-f]*:/\1/"' | grep -vE 'veth|cni0' | sort; }
