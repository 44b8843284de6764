#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The committed BPF objects are what agent/bpf/c says: rebuilds them elsewhere and compares octet by octet.
# Another version of clang makes other code of the same meaning, so only the pinned one is compared.
set -euo pipefail
cd "$(dirname "$0")/.."

pinned=$(cat agent/bpf/c/CLANG)
if ! command -v clang >/dev/null; then
	echo "verify-bpf: skipped, clang is not installed (it takes clang $pinned and libbpf-dev)"
	exit 0
fi
have=$(clang -dumpversion)
if [ "$have" != "$pinned" ]; then
	echo "verify-bpf: skipped, clang is $have and the objects are built by clang $pinned"
	exit 0
fi
if [ ! -f /usr/include/bpf/bpf_helpers.h ]; then
	echo "verify-bpf: skipped, libbpf-dev is not installed"
	exit 0
fi

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/agent/bpf"
cp go.mod go.sum "$copy/"
cp agent/bpf/generate.go "$copy/agent/bpf/"
cp -r agent/bpf/c "$copy/agent/bpf/"
(cd "$copy" && go generate ./agent/bpf)

for f in crem_bpfel.go crem_bpfel.o wan_bpfel.go wan_bpfel.o; do
	if ! cmp -s "agent/bpf/$f" "$copy/agent/bpf/$f"; then
		echo "verify-bpf: agent/bpf/$f is not what agent/bpf/c makes: run 'make bpf' and commit" >&2
		exit 1
	fi
done
echo "verify-bpf: the committed objects are those of agent/bpf/c (clang $pinned)"
