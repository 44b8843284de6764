# SPDX-License-Identifier: Apache-2.0
# An older release is upgraded with its CRDs by one command under a transfer, rolled back by helm, and upgraded again. Policy stays as it was applied.

# older_release builds it: this repository before its CRDs got their newest field, with the operator, the agent and the chart of then.
older_release() {
	local commit
	commit=$(git -C "$ROOT" log -1 --format=%H -G'^ +[a-zA-Z]+:$' -- charts/crem-crds/templates 2>/dev/null) &&
		commit=$(git -C "$ROOT" rev-parse --verify -q "$commit^") ||
		{ step "left out: no older release is upgraded, the history of this repository does not go back to one"; return 1; }
	OLDER=$B/older/$commit
	[ ! -d "$OLDER" ] || return 0
	mkdir -p "$TMP/older" "$B/older"
	git -C "$ROOT" archive "$commit" | tar -x -C "$TMP/older"
	(cd "$TMP/older" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X crem.dev/crem/internal/version.Version=${commit:0:7}" -o out/ ./cmd/crem-agent ./cmd/crem-operator) ||
		fail "the older release, $commit"
	cp -r "$TMP/older/charts" "$TMP/older/out"
	mv "$TMP/older/out" "$OLDER"
	step "the older release is built: ${commit:0:7}"
}

upgrade() {
	[ -n "${OLDER:-}" ] || return 0
	local s
	changed=0 differ=0 schemas=0
	find_endpoints
	begin_transfer upgrade 2000
	in_both apply
	wait_for 60 protected
	for s in $SITES; do
		wait_for 60 domain_ready "$s"
		policy_in "$s" >"$TMP/$s.policy"
		fields_in "$s" >"$TMP/$s.older"
	done
	step "the older release protects"

	without_protection upgrade 15 upgrade_east_first
	for s in $SITES; do fields_in "$s" >"$TMP/$s.present"; done
	figure "fields that the CRDs of the older release lack" "$(comm -13 "$TMP/east.older" "$TMP/east.present" | wc -l)" fields 1 ">="
	after_step present
	without_protection "rollback of the upgrade, both sites at once" 15 in_both roll_back
	after_step older
	without_protection "upgrade once more, both sites at once" 15 in_both release "$ROOT/charts/crem" dev
	after_step present
	figure "policy objects changed by upgrade, rollback, upgrade" "$changed" objects 0 "=="
	figure "times that kubectl diff of the samples showed something, of 6" "$differ" times 0 "=="
	figure "times that the CRDs were those of the release, of 6" "$schemas" times 6 "=="
	two_releases
	end_transfer
	in_both remove # the stage policy applies it to an empty cluster
}

# upgrade_east_first: for some seconds the agents of the two sites are of two releases.
upgrade_east_first() {
	local east
	release "$ROOT/charts/crem" dev east & east=$!
	wait_for 60 runs east dev
	wait_for 60 protected
	runs west older >/dev/null || fail "west is of the older release no more"
	figure "sites of two releases: flows protected" "$(flows east csf | jq '[.[] | select(.state == "Protecting")] | length')" flows 1 ">="
	release "$ROOT/charts/crem" dev west
	wait $east || fail "the upgrade of east"
}
runs() { # SITE TAG: the agent of the first node is of that image, and Ready
	kube "$1" -n "$NAMESPACE" get pods -l app.kubernetes.io/component=agent --field-selector "spec.nodeName=$1-n1" -o json |
		jq -e --arg image "crem/crem:$2" '.items | length == 1 and (.[0] | .spec.containers[0].image == $image and any(.status.conditions[]?; .type == "Ready" and .status == "True"))'
}

after_step() { # RELEASE: counts what differs from before the first step
	local s
	for s in $SITES; do
		changed=$((changed + $(policy_in "$s" | diff "$TMP/$s.policy" - | grep -c '^>' || true)))
		kube "$s" diff -k "$ROOT/config/samples/two-sites/$s" || differ=$((differ + 1))
		if fields_in "$s" | cmp -s "$TMP/$s.$1" -; then schemas=$((schemas + 1)); fi
	done
}
policy_in() { kube "$1" get cremdomains,cremprofiles -o json | jq -cS '.items[] | [.kind, .metadata.name, .metadata.uid, .metadata.generation, .spec]'; }
fields_in() {
	kube "$1" get crds -o json | jq -r '.items[] | select(.spec.group == "crem.dev") | .spec.names.kind as $kind | .spec.versions[0].schema.openAPIV3Schema |
		paths | select(length > 1 and .[-2] == "properties" and .[-1] != "properties") | [$kind, (.[] | strings | select(. != "properties"))] | join(".")' | sort -u
}

# two_releases: in east an older agent does what the present operator says, in west the present agent what an older operator says. helm has no value
# for it, an upgrade that stands still half-way leaves it so.
two_releases() {
	local s start
	set_image east daemonset/crem-agent older
	set_image west deployment/crem-operator older
	wait_for 60 runs east older
	kube west -n "$NAMESPACE" rollout status deployment/crem-operator --timeout=60s >/dev/null || fail "the older operator in west"
	realtime east
	wait_for 60 protected
	for s in $SITES; do generation "$s" >"$TMP/$s.generation"; done
	start=$(now)
	in_both set_k 48
	for s in $SITES; do wait_for 60 in_force_since "$s" "$(cat "$TMP/$s.generation")"; done
	figure "operator and agent of two releases: profile change to every node's report" "$(seconds $(($(now) - start)))" s 15 "<="
	wait_for 5 k_is 48
	set_image east daemonset/crem-agent dev
	set_image west deployment/crem-operator dev
	for s in "east daemonset/crem-agent" "west deployment/crem-operator"; do
		kube "${s% *}" -n "$NAMESPACE" rollout status "${s#* }" --timeout=60s >/dev/null || fail "the present release in ${s% *}"
	done
	realtime east
	wait_for 60 protected
}
set_image() { kube "$1" -n "$NAMESPACE" set image "$2" "*=crem/crem:$3" >/dev/null; }
generation() { kube "$1" get cremnode "$1-n1" -o jsonpath='{.metadata.generation}'; }
in_force_since() { # SITE GENERATION: a newer one is in force
	kube "$1" get cremnode "$1-n1" -o json | jq -e --argjson old "$2" '.metadata.generation > $old and .status.appliedGeneration == .metadata.generation'
}
remove() { kube "$1" delete -k "$ROOT/config/samples/two-sites/$1" --timeout=30s; }
