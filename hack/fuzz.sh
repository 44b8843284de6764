#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh [TIME]: runs every fuzz target of the module for TIME each (default 20s), one after the other.
set -euo pipefail
time=${1:-20s}
cd "$(dirname "$0")/.."
targets=$(grep -rhoE '^func Fuzz[A-Za-z0-9_]+\(f \*testing\.F\)' --include='*_test.go' . | wc -l)
echo "fuzz: $targets targets, $time each"
grep -rlE '^func Fuzz[A-Za-z0-9_]+\(f \*testing\.F\)' --include='*_test.go' . | sort | while read -r file; do
	grep -oE '^func Fuzz[A-Za-z0-9_]+' "$file" | sed 's/^func //' | while read -r name; do
		echo "fuzz: ${file%/*} $name"
		go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 10x "./${file%/*}" </dev/null
	done
done
