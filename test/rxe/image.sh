#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# image.sh rxe|ipsec CACHE: builds CACHE/vmlinuz and CACHE/initrd.gz, the whole guest: Debian's kernel with rdma_rxe, busybox, and this host's perftest and
# rdma-core with the libraries they load. ipsec: a kernel with TCX, ESP and XFRM interfaces, which the agent runs on. About half a minute and a download of
# 70 or 107 MB, whose checksums apt has from Debian's signed lists; nothing is done while the stamp of what went in is the same.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kind=$1 cache=$2

modules="virtio_pci virtio_console virtio_net crc32_generic ib_uverbs rdma_ucm rdma_rxe"
[ "$kind" = rxe ] || modules="$modules veth xfrm_user xfrm_interface esp4 esp6 aesni_intel gcm seqiv ghash-generic"
tools="dash ip rdma ethtool ibv_devinfo ib_write_bw ib_send_bw ib_read_bw rping"

die() { echo "image.sh: $*" >&2; exit 1; }

copy_with_libs() { # ROOT FILE...: the files and every shared library that they load
	local root=$1 f; shift
	for f in "$@" $(ldd "$@" 2>/dev/null | grep -o '/[^ )]*' | grep -v ':$' | sort -u); do
		[ -e "$root$f" ] || install -D -m755 "$(realpath "$f")" "$root$f"
	done
}

kernel_package() {
	case $kind in
	rxe) apt-cache depends linux-image-amd64 | awk '$1=="Depends:"{print $2; exit}' ;;
	ipsec) apt-cache pkgnames linux-image-6.12. | grep -E '^linux-image-6\.12\.[0-9]+\+deb[0-9]+-amd64$' | sort -V | tail -n 1 ;;
	esac
}

stamp() {
	local t
	for t in $tools; do command -v "$t" >/dev/null || die "missing tool $t"; done
	{ cat "$0" "$here/guest/init"; echo "$kind $1"; for t in $tools busybox; do sha256sum "$(command -v "$t")"; done; } | sha256sum | cut -d' ' -f1
}

fetch_kernel() { # PACKAGE: into $cache/kern
	[ -f "$cache/kern/lib/modules/${1#linux-image-}/modules.dep" ] && return
	rm -rf "$cache/kern"
	(cd "$cache" && apt-get -q download "$1" && dpkg-deb -x "$1"_*.deb kern && rm -f "$1"_*.deb)
	depmod -b "$cache/kern" "${1#linux-image-}"
}

fill() { # ROOT VERSION
	local root=$1 ver=$2 t m
	mkdir -p "$root"/{bin,sbin,dev,proc,sys,tmp,run,etc/libibverbs.d}
	install -m755 "$here/guest/init" "$root/init"
	for t in $(busybox --list); do ln -s busybox "$root/bin/$t"; done
	cp --remove-destination "$(command -v busybox)" "$root/bin/busybox"
	for t in $tools; do
		t=$(command -v "$t")
		rm -f "$root/bin/${t##*/}"
		copy_with_libs "$root" "$t"
		[ -e "$root/bin/${t##*/}" ] || ln -s "$t" "$root/bin/${t##*/}"
	done
	ln -sf dash "$root/bin/sh" # busybox's shell would prefer its own ip
	cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
	copy_with_libs "$root" /usr/lib/*/libibverbs/librxe-*.so /lib/*/libgcc_s.so.1 # glibc loads libgcc_s by name for pthread_exit
	for m in $modules; do
		modprobe -d "$cache/kern" -S "$ver" --show-depends "$m"
	done | awk '$1=="insmod"{print $2}' | sort -u | while read -r m; do
		install -D -m644 "$m" "$root/lib/modules/$ver/${m#*/modules/$ver/}"
	done
	find "$root/lib/modules" -name '*.ko.xz' -exec xz -d {} +
	echo "$modules" >"$root/modules"
	cp "$cache/kern/lib/modules/$ver"/modules.{builtin,builtin.modinfo,order} "$root/lib/modules/$ver/"
	depmod -b "$root" "$ver"
}

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
package=$(kernel_package)
if [ -z "$package" ]; then
	[ -f "$cache/initrd.gz" ] || die "apt knows no kernel package for $kind; run apt-get update"
	echo "image.sh: apt knows no kernel package, the cached image is used as it is" >&2
	exit 0
fi
want=$(stamp "$package")
if [ -f "$cache/initrd.gz" ] && [ "$(cat "$cache/stamp" 2>/dev/null)" = "$want" ]; then
	exit 0
fi
echo "image.sh: building the guest image in $cache" >&2
fetch_kernel "$package"
root=$(mktemp -d "$cache/root.XXXXXX")
trap 'rm -rf "$root"' EXIT
fill "$root" "${package#linux-image-}"
cp "$cache/kern/boot/vmlinuz-${package#linux-image-}" "$cache/vmlinuz"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$cache/initrd.new"
mv "$cache/initrd.new" "$cache/initrd.gz"
echo "$want" >"$cache/stamp"
