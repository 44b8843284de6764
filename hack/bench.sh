#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench.sh BUILD [FLAG ...]: measures and writes BUILD/bench.json, a table on the standard output. docs/bench.md says how to read it.
# BUILD/crem-agent must be there. Flags go to test/bench: hack/bench.sh build -parts gateway -rounds 3
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?folder with crem-agent}
shift
CGO_ENABLED=0 go build -trimpath -o "$build/crem-bench" ./test/bench
exec "$build/crem-bench" -agent "$build/crem-agent" -out "$build/bench.json" "$@"
