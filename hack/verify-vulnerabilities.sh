#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# verify-vulnerabilities.sh: govulncheck over the programs, where its database can be reached. Exit status: 0 none, 1 some that the programs call.
set -euo pipefail
cd "$(dirname "$0")/.."
GOVULNCHECK=golang.org/x/vuln/cmd/govulncheck@v1.9.0
out=$(mktemp)
trap 'rm -f "$out"' EXIT
rc=0
timeout 300 "${GO:-go}" run "$GOVULNCHECK" ./cmd/... >"$out" 2>&1 || rc=$?
case $rc in
0) echo "verify: govulncheck knows no vulnerability that the programs call" ;;
*)
	if grep -q '^Vulnerability #' "$out"; then
		cat "$out"
		exit 1
	fi
	echo "verify: LEFT OUT: govulncheck, its database or govulncheck itself cannot be reached: $(grep -vE '^(go: downloading|exit status)' "$out" | tail -n 1)"
	;;
esac
