#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# verify-api.sh: deep copies, CRDs and the API reference are what the API types say, and the API server's own validation agrees with internal/render. Changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
old=$(mktemp -d)
cp -rp api config docs/api.md "$old/"
restore() { cp -rp "$old/api" "$old/config" . && cp -p "$old/api.md" docs/ && rm -rf "$old"; }
trap restore EXIT
go generate ./api/...
fail=0
diff -r "$old/api" api && diff -r "$old/config/crd" config/crd && diff "$old/api.md" docs/api.md || { echo "verify: generated API files are out of date: go generate ./api/..."; fail=1; }
(cd test/crd && go test -vet=off -count=1 .) || fail=1
exit $fail
