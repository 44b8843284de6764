# SPDX-License-Identifier: Apache-2.0
# At rest nothing is written but Leases; uninstalled, nothing is left.

at_rest() {
	local n seconds
	seconds=$([ "$FORM" = full ] && echo 60 || echo 15)
	sleep 10
	n=$(writes west)
	sleep "$seconds"
	figure "API writes in $seconds s at rest" "$(($(writes west) - n))" writes 0 "=="
}
writes() {
	kube "$1" get --raw /metrics | awk '/^apiserver_request_total\{/ && /verb="(POST|PUT|PATCH|DELETE|APPLY)"/ && (/group="crem.dev"/ || (/resource="events"/ && /group="events.k8s.io"/)) {n += $NF} END {print n + 0}'
}

uninstall() {
	local s left=0 differ=0
	for s in $SITES; do helm "$s" uninstall crem -n "$NAMESPACE" --wait --timeout 120s >"$TMP/$s.helm" 2>&1 || { cat "$TMP/$s.helm"; fail "helm uninstall in $s"; }; done
	for s in $SITES; do
		# The agent's own command lists what it still finds: programs, maps, the socket, the saved configuration.
		left=$((left + $(on_node "$s" find /sys/fs/bpf /run/crem /var/lib/crem -path '*crem*' -type f 2>/dev/null | wc -l)))
		interfaces "$s" | diff "$TMP/$s.interfaces" - || differ=$((differ + 1))
	done
	figure "pins, sockets and files left on the nodes" "$left" files 0 "=="
	figure "nodes whose interfaces or queueing disciplines differ from before" "$differ" nodes 0 "=="
	for s in $SITES; do left=$((left + $(kube "$s" get cremdomains,cremprofiles,cremnodes,cremendpointslices -o name 2>/dev/null | wc -l))); done
	step "uninstalled"
}
