# SPDX-License-Identifier: Apache-2.0
# lib.sh: what the stages share: time, figures, the two sites, and transfers between their endpoints. Sourced by run.sh.

now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }
T0=$(now)
step() { local ms=$(($(now) - T0)); printf '%5d.%d s  %s\n' $((ms / 1000)) $((ms % 1000 / 100)) "$*"; }
seconds() { awk "BEGIN {print $1 / 1000}"; }

missed=0
figure() { # NAME VALUE UNIT GOAL RELATION: notes a figure, and whether it is as asked
	local met
	met=$(awk -v v="$2" -v g="$4" "BEGIN {print (v $5 g) ? \"true\" : \"false\"}")
	printf '{"name": "%s", "value": %s, "unit": "%s", "goal": "%s %s", "met": %s}\n' "$1" "$2" "$3" "$5" "$4" "$met" >>"$TMP/figures"
	step "$1: $2 $3 (asked: $5 $4)$([ "$met" = true ] || echo '  MISSED')"
	[ "$met" = true ] || missed=1
}

fail() {
	local s
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

wait_for() { # SECONDS COMMAND...: WAITED is the time in milliseconds until it succeeded
	local start end=$(($(now) + $1 * 1000)); shift
	start=$(now)
	until "$@" >/dev/null 2>&1; do [ "$(now)" -lt "$end" ] || fail "no success: $*"; sleep 0.1; done
	WAITED=$(($(now) - start))
}

in_both() { # COMMAND...: with each site as the last argument, at the same time
	local s pids=()
	for s in $SITES; do "$@" "$s" >/dev/null & pids+=($!); done
	for s in "${pids[@]}"; do wait "$s" || fail "$*"; done
}

kube() { local s=$1; shift; "$K" kubectl "$s" "$@"; }
config_of() { echo "$CREM_KUBE_CACHE/sites/$1/admin.kubeconfig"; }
crem() { local s=$1; shift; KUBECONFIG=$(config_of "$s") "$K" ops "$B/kubectl-crem" "$@"; }
helm() { local s=$1; shift; KUBECONFIG=$(config_of "$s") "$K" ops "$HELM" "$@"; }
on_node() { local s=$1; shift; "$K" node "$s" n1 "$@"; } # each node has processes of its own

# What the agents say is asked on the nodes' sockets and what the API servers say is watched: asking them again and again would take
# the processors that the answer needs.
flows() { on_node "$1" "$B/kubectl-crem" flows --socket /run/crem/agent.sock --role "$2" -o json; } # SITE ROLE
protected() { flows east csf | jq -e '[.[] | select(.state == "Protecting")] | length > 0'; }
restored() { flows west crf | jq '[.[].restored] | add // 0'; }
domain_ready() { kube "$1" wait --for=condition=Ready cremdomain --all --timeout=1s; } # SITE

# realtime SITE: lets the agent's workers run in real time, as the chart asks for. The kernel here has RT_GROUP_SCHED with cgroup v1, as few have: it
# refuses real time to every cgroup that was not given a share, and a kubelet gives none. What is changed are cgroups of the node, and go with it.
realtime() {
	on_node "$1" bash -c '
		pid=$(pgrep -o -x crem-agent) share=/sys/fs/cgroup/cpu
		[ -e $share/cpu.rt_runtime_us ] || exit 0
		IFS=/ read -ra names <<<"$(sed -n "s/^[0-9]*:[a-z,]*\bcpu\b[a-z,]*://p" /proc/$pid/cgroup)"
		for name in "" "${names[@]:1}"; do
			share=$share${name:+/$name}
			echo 400000 >$share/cpu.rt_runtime_us
		done
		chrt --all-tasks --rr --pid 1 $pid' || step "no real time for the agent of $1: its workers are kept waiting"
}

# ---- the line between the sites
line_up() {
	"$K" uplink >/dev/null
	local s
	for s in $SITES; do ip -n "${P}wan" link set "$s" nomaster; done
	ip netns exec "${P}wan" "$B/crem-wan" -a east -b west -delay 10ms -rate 400000000 -queue 4000000 -loss 0.01 -protected-only -crem-port 52000 -nap 1ms \
		-control "$TMP/wan.sock" >"$TMP/wan.log" 2>&1 &
	LINE=$!
	echo $LINE >>"$TMP/pids"
}

line() { curl -sf --unix-socket "$TMP/wan.sock" "$@"; }
line_loses() { line -X PATCH -d "{\"both\":{\"loss\":$1}}" http://wan/v1/settings >/dev/null || fail "the line does not take its settings"; }
# line_dropped counts what the machine, and not the line, lost.
line_dropped() { line http://wan/v1/stats | jq '[.[] | objects | .ring_dropped + .send_dropped] | add'; }

# ---- transfers. The endpoints run in the pods' networks but are not started by the API server, which goes away in between.
find_endpoints() {
	local s
	for s in $SITES; do kube "$s" wait --for=condition=Ready pod/endpoint --timeout=60s >/dev/null || fail "the endpoint of $s"; done
	E=$(address east) W=$(address west)
	HE=$(on_node east cat /sys/class/net/cni0/address) HW=$(on_node west cat /sys/class/net/cni0/address)
	NE=$(network east "$E") NW=$(network west "$W")
	[ -n "$NE" ] && [ -n "$NW" ] || fail "the networks of the endpoints"
}
address() { kube "$1" get pod endpoint -o jsonpath='{.status.podIP}'; }
network() { # SITE ADDRESS: the network namespace of a pod
	on_node "$1" bash -c 'for n in $(ls /run/netns); do ip -n "$n" -o addr show dev eth0 2>/dev/null | grep -q " $1/" && echo "$n"; done; true' - "$2"
}

# NICs acknowledge what came together at once. An ACK a packet would take one processor of two. A longer nap would be more than the pacer makes up for.
COMMON="-if eth0 -mtu 1024 -size 262144 -window 1024 -coalesce -nap 700us"
# 20,000 packets a second, the line and the endpoints in real time leave two processors no room for two clusters: an API server then answers after
# seconds, or not at all.
PACKETS=$(($(nproc) >= 4 ? 20000 : 10000))
begin_transfer() { # NAME [PACKETS]: that many packets a second until end_transfer
	local rate=$((${2:-$PACKETS} * 8192))
	TRANSFER=$1
	on_node west ip netns exec "$NW" "$B/crem-rc" -role responder -local "$W" -remote "$E" -next-hop "$HW" $COMMON >"$TMP/$1.responder" 2>"$TMP/$1.responder.err" &
	RESPONDER=$!
	echo $RESPONDER >>"$TMP/pids"
	sleep 1
	on_node east ip netns exec "$NE" "$B/crem-rc" -role requester -local "$E" -remote "$W" -next-hop "$HE" $COMMON -rate $rate -warmup 1s -duration 1h \
		>"$TMP/$1.json" 2>"$TMP/$1.err" &
	REQUESTER=$!
	echo $REQUESTER >>"$TMP/pids"
	sleep 2
}
end_transfer() { # its result becomes figures
	on_node east pkill -TERM -x crem-rc
	wait "$REQUESTER" || fail "the transfer: $(cat "$TMP/$TRANSFER.err")"
	on_node west pkill -TERM -x crem-rc || true
	wait "$RESPONDER" || true
	step "$TRANSFER: $(jq -c '{goodput_bps, sent_over_needed, naks, timeouts, messages, stall_ms}' "$TMP/$TRANSFER.json")"
	figure "$TRANSFER: corrupt messages" "$(jq '.corrupt // 0' "$TMP/$TRANSFER.json")" messages 0 "=="
	figure "$TRANSFER: connections in error" "$(jq '.failed // 0' "$TMP/$TRANSFER.json")" connections 0 "=="
}

# without_protection NAME GOAL COMMAND...: how long the flow is not protected while COMMAND replaces agents, and until it is protected again. The
# agents' workers run in real time afterwards.
without_protection() {
	local s watcher
	note_gaps & watcher=$!
	echo $watcher >>"$TMP/pids"
	"${@:3}"
	for s in $SITES; do realtime "$s"; done
	wait_for 60 protected
	sleep 1
	kill $watcher
	figure "$1: time without protection" "$(seconds "$(gaps)")" s "$2" "<="
}
note_gaps() { # a line for each look at the flow
	while sleep 0.1; do echo "$(now) $(protected >/dev/null 2>&1 && echo 1 || echo 0)"; done >"$TMP/gaps"
}
# gaps adds up the times between the last look with protection, or the first look, and the next one with it. There must be one: agents were replaced.
gaps() { awk 'NR == 1 {seen = $1} $2 == 1 {if (gone) {sum += $1 - seen; n++} seen = $1; gone = 0} $2 == 0 {gone = 1} END {print n ? sum : 999999}' "$TMP/gaps"; }
