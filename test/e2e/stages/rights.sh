# SPDX-License-Identifier: Apache-2.0
# An agent's rights end at its node.

rights() {
	local token
	token=$(kube east -n "$NAMESPACE" create token crem-agent --bound-object-kind Node --bound-object-name east-n1 2>/dev/null || true)
	[ -n "$token" ] || token=$(kube east -n "$NAMESPACE" create token crem-agent)
	kube east apply -f - >/dev/null <<-Y
		apiVersion: crem.dev/v1alpha1
		kind: CREMNode
		metadata: {name: foreign}
		spec: {}
	Y
	if kube east --token "$token" --kubeconfig /dev/null --server https://10.1.0.1:6443 --insecure-skip-tls-verify patch cremnode foreign --subresource=status \
		--type=merge -p '{"status":{"agentVersion":"x"}}' >/dev/null 2>"$TMP/denied"; then
		fail "an agent's token may write the status of another node"
	fi
	figure "an agent's token on another node's object, refused" 1 times 1 "=="
	kube east delete cremnode foreign --wait=false >/dev/null
}
