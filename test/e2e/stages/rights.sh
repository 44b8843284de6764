# SPDX-License-Identifier: Apache-2.0
# An agent's rights end at its node. The token is bound to the agent's pod, as the kubelet's is.

rights() {
	local pod token
	pod=$(kube east -n "$NAMESPACE" get pods -l app.kubernetes.io/component=agent --field-selector spec.nodeName=east-n1 -o jsonpath='{.items[0].metadata.name}')
	token=$(kube east -n "$NAMESPACE" create token crem-agent --bound-object-kind Pod --bound-object-name "$pod") || fail "a token for $pod"
	kube east apply -f - >/dev/null <<-Y
		apiVersion: crem.dev/v1alpha1
		kind: CREMNode
		metadata: {name: foreign}
		spec: {}
	Y
	as_agent "$token" east-n1 2>"$TMP/denied" || fail "an agent's token may not write the status of its own node: $(cat "$TMP/denied")"
	if as_agent "$token" foreign 2>"$TMP/denied"; then fail "an agent's token may write the status of another node"; fi
	grep -q "the agent of node east-n1 may not write cremnodes foreign" "$TMP/denied" || fail "not refused for the reason that counts: $(cat "$TMP/denied")"
	figure "an agent's token on another node's object, refused" 1 times 1 "=="
	kube east delete cremnode foreign --wait=false >/dev/null
}

as_agent() { # TOKEN NODE: writes a status, without leaving it
	kube east --token "$1" --kubeconfig /dev/null --server https://10.1.0.1:6443 --insecure-skip-tls-verify patch cremnode "$2" --subresource=status \
		--dry-run=server --type=merge -p '{"status":{"agentVersion":"x"}}' >/dev/null
}
