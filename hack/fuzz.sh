#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh [INPUTS]: runs every fuzz target of the module with INPUTS inputs each (default 100000x), one after the other.
# Inputs and not seconds: when its time is over, go test sometimes reports its own deadline as a failure
# ("context deadline exceeded", no input written), and a machine's speed should not decide what is proven. FuzzWorld lets two whole agents run for
# each input and gets a hundredth.
set -euo pipefail
inputs=${1:-100000x}
cd "$(dirname "$0")/.."
targets=$(grep -rhoE '^func Fuzz[A-Za-z0-9_]+\(f \*testing\.F\)' --include='*_test.go' . | wc -l)
echo "fuzz: $targets targets, $inputs each"
grep -rlE '^func Fuzz[A-Za-z0-9_]+\(f \*testing\.F\)' --include='*_test.go' . | sort | while read -r file; do
	grep -oE '^func Fuzz[A-Za-z0-9_]+' "$file" | sed 's/^func //' | while read -r name; do
		n=$inputs
		[ "$name" != FuzzWorld ] || n=$((${inputs%x} / 100 + 1))x
		echo "fuzz: ${file%/*} $name, $n"
		go test -run '^$' -fuzz "^$name\$" -fuzztime "$n" -fuzzminimizetime 10x "./${file%/*}" </dev/null
	done
done
