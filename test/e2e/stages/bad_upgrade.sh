# SPDX-License-Identifier: Apache-2.0
# helm upgrade to agents that cannot become ready, by a seccomp profile, one of the chart's values: the nodes of west do not have it and no container is
# made, in east it refuses bpf(2) and the agent runs without a data path. West has an agent on its second node too for it, and one of the two must stay.
# The only agent of east is replaced, whatever maxUnavailable says: flows pass unprotected until helm rolls back.

bad_upgrade() {
	local s before n1 west back
	begin_transfer "bad upgrade"
	wait_for 30 protected
	wait_for 30 ready_for_11_s west west-n1
	n1=$(agent_of west west-n1)
	kube west label node west-n2 lab/agent= >/dev/null
	wait_for 60 agents_ready west 2

	# The agent of n2 has not been Ready for minReadySeconds, so the DaemonSet's controller replaces it first. Next would be the one that holds the flows.
	before=$(restored)
	must_fail west 40s & west=$!
	sleep 12
	figure "bad upgrade of west: packets restored in 12 s by the agent that stayed" "$(($(restored) - before))" packets 100 ">="
	protected >/dev/null || fail "no flow is protected, though the agents of the gateways are those of before"

	refusing_profile east
	must_fail east 25s
	wait_for 60 says_why
	step "kubectl crem nodes: $(tail -n 1 "$TMP/shown")"
	figure "bad upgrade of east: agents Ready, of 1" "$(rollout_of east | jq '.numberReady // 0')" agents 0 "=="
	figure "bad upgrade of east: domain says Ready" "$(domain_ready east >/dev/null 2>&1 && echo 1 || echo 0)" times 0 "=="
	wait $west || fail "the upgrade of west"
	figure "bad upgrade of west: agents replaced, of 2" "$(rollout_of west | jq .updatedNumberScheduled)" agents 1 "=="
	figure "bad upgrade of west: agents that stayed and are Ready" "$([ "$(agent_of west west-n1)" = "$n1" ] && rollout_of west | jq '.numberReady // 0' || echo 0)" agents 1 "=="

	in_both roll_back & back=$!
	wait_for 60 protected
	figure "bad upgrade, rolled back by helm: until the flow is protected again" "$(seconds "$WAITED")" s 30 "<="
	wait $back || fail "helm rollback"
	for s in $SITES; do realtime "$s"; done
	figure "bad upgrade, rolled back by helm: agents Ready, of 3" "$(($(rollout_of east | jq .numberReady) + $(rollout_of west | jq .numberReady)))" agents 3 "=="
	for s in $SITES; do wait_for 60 domain_ready "$s"; done
	end_transfer
}

# must_fail SITE TIMEOUT: the one command says itself that it failed, after more time than agents need that do become ready.
must_fail() {
	if try_release "$ROOT/charts/crem" dev "$1" --timeout "$2" --set agent.minReadySeconds=10 --set agent.seccompProfile.type=Localhost --set agent.seccompProfile.localhostProfile=refusing.json; then
		fail "helm upgrade in $1 says that agents which cannot become ready are"
	fi
	step "helm upgrade in $1: $(grep -m 1 '^Error' "$TMP/$1.helm")"
}
refusing_profile() {
	on_node "$1" bash -c 'mkdir -p /var/lib/kubelet/seccomp && cat >/var/lib/kubelet/seccomp/refusing.json' <<-J
		{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["bpf"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}
	J
}
says_why() { crem east nodes -o wide >"$TMP/shown" 2>&1 && grep -qE '^east-n1 .* False ' "$TMP/shown"; }
rollout_of() { kube "$1" -n "$NAMESPACE" get daemonset crem-agent -o jsonpath='{.status}'; }
agents_ready() { [ "$(rollout_of "$1" | jq '.numberReady // 0')" = "$2" ]; }
agent_of() { pod_of "$@" | jq -r .metadata.uid; }
pod_of() { # SITE NODE
	kube "$1" -n "$NAMESPACE" get pods -l app.kubernetes.io/component=agent --field-selector "spec.nodeName=$2" -o json | jq '.items[0]'
}
ready_for_11_s() {
	pod_of "$@" | jq -e 'any(.status.conditions[]; .type == "Ready" and .status == "True" and (.lastTransitionTime | fromdate) < now - 12)'
}
