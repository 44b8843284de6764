# SPDX-License-Identifier: Apache-2.0
# The policy is applied under traffic, seen with kubectl crem, and a profile changed under load: no flow is interrupted.

policy() {
	local s start
	find_endpoints
	step "endpoints are $E and $W"
	begin_transfer policy 2000
	start=$(now)
	in_both apply
	wait_for 60 protected
	figure "apply to first protected packet" "$(seconds $(($(now) - start)))" s 5 "<="
	for s in $SITES; do wait_for 60 domain_ready "$s"; done
	step "the domains are Ready"
	crem east flows --node east-n1 | grep -q Protecting || fail "kubectl crem flows does not show the flow"
	crem east status | grep -q aidc-backbone || fail "kubectl crem status does not show the domain"
	crem east nodes | grep -q east-n1 || fail "kubectl crem nodes does not show the node"
	end_transfer
}

profile_change() {
	local s start last
	begin_transfer "profile change"
	wait_for 30 protected
	local before ids
	before=$(restored)
	ids=$(flow_ids)
	for s in $SITES; do watch_generations "$s" & echo $! >>"$TMP/pids"; done
	for s in $SITES; do wait_for 30 test -s "$TMP/$s.generations"; done
	OLD_EAST=$(newest east) OLD_WEST=$(newest west)
	start=$(now)
	in_both set_k
	wait_for 60 reported
	last=$(cat "$TMP"/*.generations | sort -n | tail -n 1 | cut -d ' ' -f 1)
	figure "profile change to every node's report" "$(seconds $((last - start)))" s 3 "<="
	wait_for 5 k_is_48
	figure "flows interrupted by the profile change" "$([ "$(flow_ids)" = "$ids" ] && echo 0 || echo 1)" flows 0 "=="
	observe
	figure "packets restored in west" "$(($(restored) - before))" packets 100 ">="
	end_transfer
	figure "profile change: sent over needed" "$(jq .sent_over_needed "$TMP/profile change.json")" "" 1.1 "<="
}

apply() { kube "$1" apply -k "$ROOT/config/samples/two-sites/$1"; }
set_k() { kube "$1" patch cremprofile standard --type=merge -p '{"spec":{"k":48}}'; }
k_is_48() { flows east csf | jq -e '[.[] | select(.state == "Protecting" and .k == 48)] | length > 0'; }
flow_ids() { flows east csf | jq -c '[.[] | select(.state == "Protecting") | .flowID] | sort'; }

watch_generations() { # SITE: notes when each generation of the node's object was seen in force
	kube "$1" get cremnode "$1-n1" --watch -o jsonpath='{.metadata.generation} {.status.appliedGeneration}{"\n"}' | while read -r generation applied; do
		[ "$generation" != "$applied" ] || echo "$(now) $applied"
	done >"$TMP/$1.generations"
}
newest() { tail -n 1 "$TMP/$1.generations" | cut -d ' ' -f 2; }
reported() { [ "$(newest east)" -gt "$OLD_EAST" ] && [ "$(newest west)" -gt "$OLD_WEST" ]; }
