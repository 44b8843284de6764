# SPDX-License-Identifier: Apache-2.0
# The policy is applied under traffic, seen with kubectl crem, and a profile changed under load: no flow is interrupted, no packet lost.

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
	commands
	end_transfer
	helm_test
}

# commands asks every command of kubectl crem that shows a cluster, through the API server as a person does.
commands() {
	local flow
	flow=$(crem east flows --node east-n1 -o json | jq -r '[.[] | select(.state == "Protecting")][0].id')
	asked=0 shown=0
	shows aidc-backbone status
	shows '^east-n1 ' nodes
	shows Protecting flows --node east-n1
	shows Protecting top --node east-n1 --once
	shows '^node east-n1: Ready' explain east-n1
	shows '^- m = ' explain "$flow" --node east-n1
	figure "commands of kubectl crem that show what they should, of $asked" "$shown" commands "$asked" "=="
}
shows() { # PATTERN ARGUMENTS...
	asked=$((asked + 1))
	if crem east "${@:2}" >"$TMP/shown" 2>&1 && grep -q -e "$1" "$TMP/shown"; then shown=$((shown + 1)); else
		step "kubectl crem ${*:2} does not show $1:"
		cat "$TMP/shown"
	fi
}

helm_test() {
	local s passed=0
	for s in $SITES; do
		if helm "$s" test crem -n "$NAMESPACE" --timeout 120s >"$TMP/$s.helmtest" 2>&1; then passed=$((passed + 1)); else cat "$TMP/$s.helmtest"; fi
	done
	figure "sites in which helm test passes" "$passed" sites 2 "=="
}

# A line that loses nothing shows every packet that a change of the profile would cost: the endpoints sent it again.
lossless_change() {
	local again dropped
	line_loses 0
	begin_transfer "profile change without loss"
	wait_for 30 protected
	in_both set_k 40
	wait_for 30 k_is 40
	sleep 2
	end_transfer
	dropped=$(($(line_dropped) + $(jq -s 'map(.ring_dropped + .send_dropped) | add' "$TMP/$TRANSFER.json" "$TMP/$TRANSFER.responder")))
	again=$(jq '.sent - .needed' "$TMP/$TRANSFER.json")
	if [ "$dropped" = 0 ]; then
		figure "profile change without loss: packets sent again" "$again" packets 0 "=="
	else
		step "left out: $again packets were sent again, but the machine dropped $dropped by itself"
	fi
	line_loses 0.01
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
	in_both set_k 48
	wait_for 60 reported
	last=$(cat "$TMP"/*.generations | sort -n | tail -n 1 | cut -d ' ' -f 1)
	figure "profile change to every node's report" "$(seconds $((last - start)))" s 3 "<="
	wait_for 5 k_is 48
	figure "flows interrupted by the profile change" "$([ "$(flow_ids)" = "$ids" ] && echo 0 || echo 1)" flows 0 "=="
	observe
	figure "packets restored in west" "$(($(restored) - before))" packets 100 ">="
	end_transfer
	figure "profile change: sent over needed" "$(jq .sent_over_needed "$TMP/profile change.json")" "" 1.1 "<="
}

apply() { kube "$1" apply -k "$ROOT/config/samples/two-sites/$1"; }
set_k() { kube "$2" patch cremprofile standard --type=merge -p "{\"spec\":{\"k\":$1}}"; } # K SITE
k_is() { flows east csf | jq -e --argjson k "$1" '[.[] | select(.state == "Protecting" and .k == $k)] | length > 0'; }
flow_ids() { flows east csf | jq -c '[.[] | select(.state == "Protecting") | .flowID] | sort'; }

watch_generations() { # SITE: notes when each generation of the node's object was seen in force
	kube "$1" get cremnode "$1-n1" --watch -o jsonpath='{.metadata.generation} {.status.appliedGeneration}{"\n"}' | while read -r generation applied; do
		[ "$generation" != "$applied" ] || echo "$(now) $applied"
	done >"$TMP/$1.generations"
}
newest() { tail -n 1 "$TMP/$1.generations" | cut -d ' ' -f 2; }
reported() { [ "$(newest east)" -gt "$OLD_EAST" ] && [ "$(newest west)" -gt "$OLD_WEST" ]; }
