#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh full|short|ipsec [flags of crem-rxe]: real Soft-RoCE and perftest in two virtual machines, without and with CREM. ipsec: the machines
# are gateways too, whose kernels encrypt everything. See README.md.
#
# Exit status: 0 met, 1 a figure was missed, 2 the test could not go on, 75 this machine cannot build or boot the virtual machines (a line says why).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/crem

cannot() { echo "e2e-rxe cannot run here: $*" >&2; exit 75; }

# Commands that the test and the guest image need, and Debian's packages for them.
commands="qemu-system-x86_64 busybox depmod cpio rdma ibv_devinfo rping ib_write_bw ip ethtool dash xz"
packages="qemu-system-x86 busybox-static kmod cpio rdma-core ibverbs-providers ibverbs-utils rdmacm-utils perftest iproute2 ethtool dash xz-utils"

missing() {
	local c
	for c in $commands; do command -v "$c" >/dev/null || { echo "$c"; return; }; done
	[ -f /etc/libibverbs.d/rxe.driver ] || echo "the rxe provider of libibverbs"
}

case ${1:-} in
full | short) cases=$1 kind=rxe; shift ;;
ipsec) cases=$1 kind=ipsec; shift ;;
*) sed -n '3,6s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
[ "$(id -u)" = 0 ] || cannot "it makes network namespaces and needs root"
[ "$(uname -m)" = x86_64 ] || cannot "its guests are x86_64 machines"
[ -c /dev/net/tun ] || cannot "there is no /dev/net/tun"
if [ -n "$(missing)" ]; then
	command -v apt-get >/dev/null || cannot "$(missing) is missing and there is no apt-get to install it"
	echo "e2e-rxe: installing packages" >&2
	log=$(mktemp)
	# shellcheck disable=SC2086 # a list of words
	if ! { apt-get -o DPkg::Lock::Timeout=600 -q update &&
		DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -y -q install --no-install-recommends $packages; } >"$log" 2>&1; then
		tail -n 5 "$log" >&2
		rm -f "$log"
		cannot "packages could not be installed"
	fi
	rm -f "$log"
	[ -z "$(missing)" ] || cannot "$(missing) is missing"
fi
"$here/image.sh" "$kind" "$cache/$kind" || cannot "the guest image could not be built"

cd "$root"
[ -x build/crem-agent ] || make build
go build -trimpath -o build/crem-rxe ./test/rxe/cmd/crem-rxe
exec build/crem-rxe -image "$cache/$kind" -cases "$cases" "$@"
