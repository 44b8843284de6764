#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# verify.sh: generated files are what their sources say, module files are tidy, code is formatted, no vulnerability is known that concerns us.
# Changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
fail=0
unformatted=$(gofmt -l $(git ls-files '*.go'))
[ -z "$unformatted" ] || { echo "verify: not formatted (make fmt): $unformatted"; fail=1; }
go mod tidy -diff || { echo "verify: go.mod or go.sum is not tidy (go mod tidy)"; fail=1; }
GOARCH=arm64 go vet ./agent/... ./cmd/... || { echo "verify: does not build for arm64"; fail=1; }
hack/verify-bpf.sh || fail=1
hack/verify-api.sh || fail=1
hack/verify-manifests.sh || fail=1
missing=$(git ls-files '*.go' '*.c' '*.h' '*.sh' | while read -r f; do head -3 "$f" | grep -qE 'SPDX-License-Identifier: Apache-2.0|Code generated' || echo "$f"; done)
[ -z "$missing" ] || { echo "verify: no licence line in: $missing"; fail=1; }
hack/verify-vulnerabilities.sh || fail=1
exit $fail
