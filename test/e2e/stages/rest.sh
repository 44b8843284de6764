# SPDX-License-Identifier: Apache-2.0
# At rest nothing is written but Leases; uninstalled, nothing is left.

at_rest() {
	local n seconds
	seconds=$([ "$FORM" = full ] && echo 60 || echo 15)
	sleep 100 # the flows of the last transfer end after 30 s, and what is shown of them changes at most once a minute
	n=$(($(writes east) + $(writes west)))
	sleep "$seconds"
	figure "API writes in $seconds s at rest, both sites" "$(($(writes east) + $(writes west) - n))" writes 0 "=="
}
writes() {
	kube "$1" get --raw /metrics | awk '/^apiserver_request_total\{/ && /verb="(POST|PUT|PATCH|DELETE|APPLY)"/ && (/group="crem.dev"/ || (/resource="events"/ && /group="events.k8s.io"/)) {n += $NF} END {print n + 0}'
}

uninstall() {
	local s n left=0 objects=0 differ=0
	for s in $SITES; do helm "$s" uninstall crem -n "$NAMESPACE" --wait --timeout 120s >"$TMP/$s.helm" 2>&1 || { cat "$TMP/$s.helm"; fail "helm uninstall in $s"; }; done
	for s in $SITES; do
		for n in $(seq "$(nodes_of "$s")"); do left=$((left + $(left_on "$s" "n$n"))); done
		interfaces "$s" | diff "$TMP/$s.interfaces" - || differ=$((differ + 1))
		objects=$((objects + $(written_in "$s")))
	done
	figure "pins, sockets, files and agents left on the nodes" "$left" things 0 "=="
	figure "nodes whose interfaces or queueing disciplines differ from before" "$differ" nodes 0 "=="
	figure "objects of the operator and the agents left" "$objects" objects 0 "=="
	step "uninstalled"
}

# left_on SITE NODE counts what is left. Folders stay, the kubelet made them. A program of BPF lives as long as its pin or the process that holds it; the
# agent's own command names what it still finds.
left_on() {
	"$K" node "$1" "$2" bash -c '
		find /sys/fs/bpf /run/crem /var/lib/crem ! -type d -path "*crem*" 2>/dev/null
		for program in crem-agent crem-operator; do pgrep -x "$program"; done
		"$0" uninstall 2>&1 | grep -v "^nothing to remove$"
		true' "$B/crem-agent" | tee "$TMP/$1.left" | wc -l
	cat "$TMP/$1.left" >&2
}
# CREMDomains and CREMProfiles are people's and stay, with their CRDs.
written_in() {
	kube "$1" get cremnodes,cremendpointslices -o name >"$TMP/$1.objects" || fail "the objects of $1"
	kube "$1" -n "$NAMESPACE" get leases -o name >>"$TMP/$1.objects" || fail "the Leases of $1"
	cat "$TMP/$1.objects" >&2
	wc -l <"$TMP/$1.objects"
}
