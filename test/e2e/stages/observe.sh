# SPDX-License-Identifier: Apache-2.0
# A real Prometheus finds the pods as the PodMonitors say, loads the rules, and answers every query of the dashboard with data.

observe() {
	local at=http://127.0.0.1:19090 query answer asked=0 empty=0
	for p in prometheus promtool; do command -v $p >/dev/null || { step "left out: $p is not installed, no query of the dashboard is tried"; return; }; done
	rm -rf "$B/prometheus"; mkdir -p "$B/prometheus" # the nodes have a /tmp of their own
	prometheus_config >"$B/prometheus/prometheus.yml"
	cp "$ROOT/config/prometheus/rules.yaml" "$B/prometheus/resource.yaml"
	rules_of "$B/prometheus/resource.yaml" >"$B/prometheus/rules.yml"
	promtool check config "$B/prometheus/prometheus.yml" >/dev/null || fail "the configuration of Prometheus"
	on_node east prometheus --config.file="$B/prometheus/prometheus.yml" --storage.tsdb.path="$B/prometheus/data" --web.listen-address=127.0.0.1:19090 \
		>"$B/prometheus/log" 2>&1 &
	echo $! >>"$TMP/pids"
	wait_for 60 targets_up "$at"
	sleep 12 # rates need several samples
	while read -r query; do
		answer=$(ask "$at" "$query") || fail "Prometheus does not answer: $query"
		asked=$((asked + 1))
		[ -n "$answer" ] || { empty=$((empty + 1)); step "no data: $query"; }
	done < <(jq -r '.. | .targets? // empty | .[].expr' "$ROOT/charts/crem/files/dashboard.json" | sed 's/\$__rate_interval/10s/g; s/\$node/.*/g')
	figure "queries of the dashboard with data, of $asked" "$((asked - empty))" queries "$asked" "=="
	figure "rules that cannot be evaluated" "$(on_node east curl -sf "$at/api/v1/rules" | jq '[.data.groups[].rules[] | select(.health == "err")] | length')" rules 0 "=="
	on_node east pkill -x prometheus || true
}

ask() { on_node east promtool query instant "$1" "$2"; }
targets_up() { # two agents, four operators
	[ "$(on_node east curl -sf "$1/api/v1/targets" | jq '[.data.activeTargets[] | select(.health == "up")] | length')" = 6 ]
}
rules_of() { sed -n '/^spec:/,$p' "$1" | sed '1d; s/^  //'; }

# prometheus_config finds the pods as config/prometheus/pod_monitors.yaml does, once: Debian's Prometheus cannot ask an API server.
prometheus_config() {
	local s c
	echo "global: {scrape_interval: 2s, evaluation_interval: 2s}"
	echo "rule_files: [rules.yml]"
	echo "scrape_configs:"
	for c in agent operator; do
		for s in $SITES; do
			kube "$s" -n "$NAMESPACE" get pods -l "app.kubernetes.io/name=crem,app.kubernetes.io/component=$c" -o json
		done | jq -s --arg job "crem-$c" '[.[].items[] | . as $pod | .spec.containers[].ports[]? | select(.name == "metrics") |
			{targets: ["\($pod.status.podIP):\(.containerPort)"], labels: ({job: $job} + if $job == "crem-agent" then {node: $pod.spec.nodeName} else {} end)}]' >"$B/prometheus/$c.json"
		echo "- {job_name: crem-$c, file_sd_configs: [{files: [$c.json]}]}"
	done
}
