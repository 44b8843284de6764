#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test.sh GOTESTSUM PACKAGES FLAGS...: go test of these packages with these flags. A test that fails is run again by itself, up to twice, and that is said. It
# passes then only if its package runs programs or an API server against the clock, which a machine may keep from their processors for seconds.
set -euo pipefail
gotestsum=$1 packages=$2
shift 2
against_the_clock='/test/(system|operator|chart|netns|image|monitoring|lab/[a-z]+)\.|/agent/(node|bpf)\.|/cmd/'
report=$(mktemp)
trap 'rm -f "$report"' EXIT
"$gotestsum" --format pkgname --format-icons text --format-hide-empty-pkg --rerun-fails=2 --rerun-fails-report "$report" --packages "$packages" -- "$@"
[ -s "$report" ] || exit 0
echo "Tests that did not pass the first time:"
cat "$report"
if strict=$(grep -vE "$against_the_clock" "$report"); then
	echo "These do not depend on the clock, and must pass each time:"
	echo "$strict"
	exit 1
fi
