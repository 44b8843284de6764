# SPDX-License-Identifier: Apache-2.0
# What happens to real nodes, under traffic: the API server is away and the agent killed meanwhile, a rolling update, a power loss.

api_server_away() {
	begin_transfer "API server away"
	"$K" kill east cp
	on_node east pkill -9 -x crem-agent
	step "the API server of east is gone, its agent was killed"
	wait_for 90 protected
	figure "agent killed without an API server, until it protects again" "$(seconds "$WAITED")" s 30 "<="
	realtime east
	[ "$FORM" = short ] || sleep 60
	"$K" start east cp
	wait_for 120 domain_ready east # informers of client-go ask again after up to a minute
	figure "API server is back, until the domain says Ready" "$(seconds "$WAITED")" s 90 "<="
	end_transfer
}

# Where an agent of a site is replaced nobody else can take its work over: a node has one. What a person sees of it is for how long.
rolling_update() {
	begin_transfer "rolling update"
	wait_for 30 protected
	without_protection "rolling update of both sites at once" 5 in_both restart_agents
	end_transfer
}
restart_agents() {
	kube "$1" -n "$NAMESPACE" rollout restart daemonset crem-agent && kube "$1" -n "$NAMESPACE" rollout status daemonset crem-agent --timeout=120s
}

power_loss() {
	local start
	"$K" kill west n1
	kill "$LINE" 2>/dev/null || true
	start=$(now)
	wait_for 120 silent west
	figure "gateway without power, until its CREMNode says so" "$(seconds "$WAITED")" s 60 "<="
	"$K" start west n1
	step "west-n1 has power again"
	line_up
	wait_for 120 domain_ready west
	find_endpoints
	realtime west
	begin_transfer "after the power loss"
	wait_for 60 protected
	step "the flow is protected again, $(seconds $(($(now) - start))) s after the power went"
	end_transfer
}
silent() { [ "$(kube "$1" get cremnode "$1-n1" -o jsonpath='{.status.conditions[?(@.type=="Ready")].status}')" = Unknown ]; }
