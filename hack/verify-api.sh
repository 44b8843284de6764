#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# verify-api.sh: deep copies and CRDs are what the API types say, and the API server's own validation agrees with internal/render. Changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
old=$(mktemp -d)
cp -rp api config "$old/"
restore() { cp -rp "$old/api" "$old/config" . && rm -rf "$old"; }
trap restore EXIT
go generate ./api/...
fail=0
diff -r "$old/api" api && diff -r "$old/config/crd" config/crd || { echo "verify: generated API files are out of date: go generate ./api/..."; fail=1; }
(cd test/crd && go test -vet=off -count=1 .) || fail=1
exit $fail
