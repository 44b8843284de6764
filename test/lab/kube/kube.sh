#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two real Kubernetes clusters, "east" and "west", on one machine. Every node and every
# control plane is a machine of its own: net, mount, uts, ipc, cgroup and pid namespaces.
#
#   kube.sh packages                     apt packages (once)
#   kube.sh build [PROGRAM...]           Kubernetes and etcd from Go modules, into the cache
#   kube.sh up SITE [NODES]              control plane and nodes n1.. Ready; prints the kubeconfig
#   kube.sh kubectl SITE ARG...          kubectl with the kubeconfig of the site
#   kube.sh ops COMMAND...               run a command where both API servers are reachable
#   kube.sh load SITE IMAGE [NAME=]STATIC-BINARY [[NAME=]FILE...]
#                                        image from scratch, entrypoint the first, on all nodes
#   kube.sh node SITE NODE COMMAND...    run a command inside a node
#   kube.sh uplink                       join n1 of both sites by wan0 (MTU, WAN=veth|tap)
#   kube.sh kill SITE NODE               power loss
#   kube.sh start SITE NODE              and power on again
#   kube.sh down [SITE]                  remove everything that was made here
#
# SITE is east or west, NODE n1 to n9 (or cp, the control plane). All need root but build.
# State: $CREM_KUBE_CACHE (default ~/.cache/crem/kube). Network namespaces are named
# crem-SITE-NODE, crem-SITE-cp, crem-wan, crem-ops ($CREM_KUBE_PREFIX instead of crem-).
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${CREM_KUBE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/crem/kube}
P=${CREM_KUBE_PREFIX:-crem-}
export CREM_KUBE_CACHE=$CACHE PATH=$CACHE/bin:$PATH

PACKAGES="containerd runc containernetworking-plugins iptables nftables conntrack
 curl ethtool iproute2 iputils-ping jq openssl procps util-linux"
PROGRAMS="kube-apiserver etcd kubectl kubelet kube-controller-manager kube-scheduler kube-proxy
 pause mkimg"
MAX_NODES=9
SERVICES=10.96.0.0/16,fd00:96::/112

die() { echo "kube.sh: $*" >&2; exit 1; }
say() { echo "kube.sh: $*" >&2; }
root() { [ "$(id -u)" = 0 ] || die "this needs root"; }

# ---- packages and programs

install_packages() {
	DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 \
		-y -q install --no-install-recommends $PACKAGES
}

package_of() {
	case $1 in
	kube*) echo "k8s.io/kubernetes/cmd/$1" ;;
	*) echo "./$1" ;;
	esac
}

ldflags() {
	local v p f
	v=$(awk '$1 == "k8s.io/kubernetes" {print $2}' go.mod)
	echo -n "-s -w"
	for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
		f=${v#v1.}
		echo -n " -X $p.gitVersion=$v -X $p.gitMajor=1 -X $p.gitMinor=${f%%.*}"
	done
	p=k8s.io/component-base/version
	echo " -X $p.gitTreeState=clean -X $p.gitCommit=module-$v -X $p.buildDate=1970-01-01T00:00:00Z"
}

build() {
	local name n=0 stamp flags
	[ $# -gt 0 ] || set -- $PROGRAMS
	mkdir -p "$CACHE/bin" "$CACHE/stamp"
	cd "$HERE/tools"
	flags=$(ldflags)
	for name; do
		n=$((n + 1)) SECONDS=0
		stamp=$(cat go.mod go.sum "$name"/*.go 2>/dev/null | sha256sum; go env GOVERSION GOARCH; echo "$flags")
		if [ -x "$CACHE/bin/$name" ] && [ "$stamp" = "$(cat "$CACHE/stamp/$name" 2>/dev/null)" ]; then
			say "[$n/$#] $name is up to date"
			continue
		fi
		say "[$n/$#] $name ..."
		CGO_ENABLED=0 GOFLAGS="-mod=readonly -buildvcs=false -p=$(nproc)" \
			go build -v -trimpath -ldflags "$flags" -o "$CACHE/stamp/new/" "$(package_of "$name")" 2>&1 | progress
		mv "$CACHE/stamp/new/$name" "$CACHE/bin/$name"
		echo "$stamp" >"$CACHE/stamp/$name"
		say "[$n/$#] $name: $SECONDS s, $(($(stat -c %s "$CACHE/bin/$name") >> 20)) MiB"
	done
	[ ! -x "$CACHE/bin/mkimg" ] || [ ! -x "$CACHE/bin/pause" ] ||
		mkimg -o "$CACHE/pause.tar" -ref lab.test/pause:1 pause="$CACHE/bin/pause" >/dev/null
}

progress() { # go build -v prints a line per package: count those, keep what else it says
	awk '/^[A-Za-z0-9.\/_-]+$/ { if (++n % 100 == 0) { print "  " n " packages"; fflush() } next } { print; fflush() }' >&2
}

# ---- names and addresses
#
#   site N (east 1, west 2)   10.N.0.0/16, fd00:N::/32
#   control plane, node i     10.N.0.1, 10.N.0.(10+i); fd00:N::1, fd00:N::(10+i)
#   pods of node i            10.N.i.0/24, fd00:N:0:i::/64
#   wan0 of n1                10.9.0.N/24, fd00:9::N/64
#   link to crem-ops          10.8.N.1, .2/30; fd00:8:N::1, ::2/64

site() { # NAME: sets SITE, its number N, the other's FAR, its folder DIR
	root
	case ${1:-} in
	east) N=1 FAR=2 ;;
	west) N=2 FAR=1 ;;
	*) die "SITE is east or west, not '${1:-}'" ;;
	esac
	SITE=$1 DIR=$CACHE/sites/$1
}

machine() { # n1, 1 and east-n1 all name n1
	local m=${1:-}
	m=${m#"$SITE-"} m=n${m#n}
	[ "$m" != ncp ] || m=cp
	case $m in cp | n[1-9]) echo "$m" ;; *) die "NODE is n1 to n$MAX_NODES, or cp, not '${1:-}'" ;; esac
}

netns() { echo "$P$SITE-$1"; }

machines() { local d; for d in "$DIR"/n[1-9] "$DIR/cp"; do [ ! -d "$d" ] || echo "${d##*/}"; done; }

# ---- networks

has_netns() { # NETNS: there already; one of that name that is not ours is an error
	[ -e "/run/netns/$1" ] || return 1
	[ -e "$CACHE/netns/$1" ] || die "the namespace $1 is another lab's: set CREM_KUBE_PREFIX"
}

new_netns() {
	mkdir -p "$CACHE/netns"
	ip netns add "$1"
	touch "$CACHE/netns/$1"
	ip -n "$1" link set lo up
}

drop_netns() {
	[ -e "$CACHE/netns/$1" ] || return 0
	ip netns del "$1" 2>/dev/null || true # after a reboot there is only the note
	rm "$CACHE/netns/$1"
}

add_netns() { # of a machine
	new_netns "$1"
	ip netns exec "$1" sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
		net.ipv6.conf.default.accept_dad=0 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
}

pod_routes() { # to the pods of all nodes but one, whether they exist or not
	local i
	for ((i = 1; i <= MAX_NODES; i++)); do
		[ "n$i" = "$1" ] || echo "route add 10.$N.$i.0/24 via 10.$N.0.$((10 + i))
			route add fd00:$N:0:$i::/64 via fd00:$N::$((10 + i))"
	done
}

cp_network() {
	local ns; ns=$(netns cp)
	! has_netns "$ns" || return 0
	add_netns "$ns"
	ip -n "$ns" -b - <<-E
		link add br0 address 02:00:0$N:00:00:01 type bridge
		addr add 10.$N.0.1/24 dev br0
		addr add fd00:$N::1/64 dev br0 nodad
		link set br0 up
		$(pod_routes cp)
		route add 10.$FAR.0.0/16 via 10.$N.0.11
		route add fd00:$FAR::/32 via fd00:$N::11
	E
	shared_netns ops
	ip -n "${P}ops" link add "$SITE" type veth peer name ops netns "$ns"
	ip -n "$ns" -b - <<-E
		addr add 10.8.$N.1/30 dev ops
		addr add fd00:8:$N::1/64 dev ops nodad
		link set ops up
	E
	ip -n "${P}ops" -b - <<-E
		addr add 10.8.$N.2/30 dev $SITE
		addr add fd00:8:$N::2/64 dev $SITE nodad
		link set $SITE up
		route add 10.$N.0.0/16 via 10.8.$N.1
		route add fd00:$N::/32 via fd00:8:$N::1
	E
}

node_network() { # MACHINE
	local ns i=${1#n}; ns=$(netns "$1")
	! has_netns "$ns" || return 0
	add_netns "$ns"
	ip -n "$(netns cp)" link add "$1" type veth \
		peer name eth0 address "02:00:0$N:00:00:1$i" netns "$ns"
	ip -n "$(netns cp)" link set "$1" master br0 up
	ip -n "$ns" -b - <<-E
		addr add 10.$N.0.$((10 + i))/24 dev eth0
		addr add fd00:$N::$((10 + i))/64 dev eth0 nodad
		link set eth0 up
		route add default via 10.$N.0.1
		route add default via fd00:$N::1
		$(pod_routes "$1")
	E
	if [ "$1" = n1 ]; then # the gateway to the other site; wan0's routes come before these
		ip -n "$ns" route add unreachable "10.$FAR.0.0/16" metric 4096
		ip -n "$ns" route add unreachable "fd00:$FAR::/32" metric 4096
		wan_port
	else
		ip -n "$ns" route add "10.$FAR.0.0/16" via "10.$N.0.11"
		ip -n "$ns" route add "fd00:$FAR::/32" via "fd00:$N::11"
	fi
}

shared_netns() { # ops or wan, by the site that comes first
	(
		flock 8
		! has_netns "$P$1" || exit 0
		new_netns "$P$1"
		[ "$1" = wan ] || exit 0
		ip netns exec "${P}wan" sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
		ip -n "${P}wan" link add wan type bridge mcast_snooping 0
		ip -n "${P}wan" link set wan up
	) 8>"$CACHE/sites/.netns"
}

# The line between the sites: one end of a veth pair in n1, the other on a bridge in a
# namespace of its own, so that a site that loses power takes only its end with it.
wan_port() {
	local ns kind mtu; ns=$(netns n1)
	[ -f "$CACHE/uplink" ] || return 0
	read -r kind mtu <"$CACHE/uplink"
	if [ "$kind" = tap ]; then
		ip -n "$ns" tuntap add wan0 mode tap
	else
		shared_netns wan
		ip -n "${P}wan" link add "$SITE" mtu "$mtu" type veth peer name wan0 netns "$ns"
		ip -n "${P}wan" link set "$SITE" master wan up
		# Whole frames with checksums, as on a line.
		ip netns exec "$ns" ethtool -K wan0 tx off tso off gso off >/dev/null
	fi
	ip -n "$ns" -b - <<-E
		link set wan0 address 02:00:09:00:00:0$N mtu $mtu
		addr add 10.9.0.$N/24 dev wan0
		addr add fd00:9::$N/64 dev wan0 nodad
		link set wan0 up
		route add 10.$FAR.0.0/16 via 10.9.0.$FAR src 10.$N.0.11
		route add fd00:$FAR::/32 via fd00:9::$FAR src fd00:$N::11
	E
}

uplink() {
	local s want="${WAN:-veth} ${MTU:-1500}"
	case $want in veth\ * | tap\ *) ;; *) die "WAN is veth or tap" ;; esac
	for s in east west; do
		site "$s"; alive n1 || die "$s-n1 is not up"
		[ "$want" = "$(cat "$CACHE/uplink" 2>/dev/null)" ] || ip -n "$(netns n1)" link del wan0 2>/dev/null || true
	done
	echo "$want" >"$CACHE/uplink"
	for s in east west; do
		site "$s"
		ip -n "$(netns n1)" link show wan0 >/dev/null 2>&1 || wan_port
		echo "$s: wan0 in $(netns n1), 10.9.0.$N fd00:9::$N"
	done
}

# ---- keys and certificates

certificate() { # NAME SUBJECT USAGE [ALTERNATIVE NAMES]
	local d=$DIR/pki
	openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$d/$1.key" -subj "$2" 2>/dev/null |
		openssl x509 -req -CA "$d/ca.crt" -CAkey "$d/ca.key" -days 365 -out "$d/$1.crt" \
			-extfile <(echo "extendedKeyUsage=$3"; [ -z "${4:-}" ] || echo "subjectAltName=$4") 2>/dev/null
}

kubeconfig() { # NAME SUBJECT: a self-contained one, DIR/NAME.kubeconfig
	local d=$DIR/pki
	[ ! -f "$DIR/$1.kubeconfig" ] || return 0
	certificate "$1" "$2" clientAuth
	install -m600 /dev/stdin "$DIR/$1.kubeconfig" <<-E
		apiVersion: v1
		kind: Config
		clusters: [{name: $SITE, cluster: {server: "https://10.$N.0.1:6443", certificate-authority-data: $(base64 -w0 "$d/ca.crt")}}]
		users: [{name: $1, user: {client-certificate-data: $(base64 -w0 "$d/$1.crt"), client-key-data: $(base64 -w0 "$d/$1.key")}}]
		contexts: [{name: $SITE, context: {cluster: $SITE, user: $1}}]
		current-context: $SITE
	E
}

keys() {
	local d=$DIR/pki
	mkdir -p "$d"
	if [ ! -f "$d/apiserver.crt" ]; then
		openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 \
			-subj "/CN=$SITE" -keyout "$d/ca.key" -out "$d/ca.crt" 2>/dev/null
		openssl genrsa -out "$d/sa.key" 2048 2>/dev/null
		openssl rsa -in "$d/sa.key" -pubout -out "$d/sa.pub" 2>/dev/null
		certificate kubelet-client /O=system:masters/CN=apiserver clientAuth
		certificate front-proxy /CN=front-proxy clientAuth
		certificate apiserver /CN=kube-apiserver serverAuth \
			"IP:10.$N.0.1,IP:fd00:$N::1,IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
	fi
	kubeconfig admin /O=system:masters/CN=admin
	kubeconfig controller-manager /CN=system:kube-controller-manager
	kubeconfig scheduler /CN=system:kube-scheduler
	kubeconfig proxy /CN=system:kube-proxy
}

# ---- machines
#
# A machine is one process, recorded as "pid start-time" in its folder: unshare, whose child
# is pid 1 of the machine. To kill it is to kill all that runs in the machine.

start_time() { # PID
	local s
	{ s=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
	set -- ${s##*) }
	[ "$1" != Z ] && echo "${20}"
}

alive() { # MACHINE
	local pid start
	{ read -r pid start <"$DIR/$1/pid"; } 2>/dev/null && [ "$(start_time "$pid")" = "$start" ]
}

power_on() { # MACHINE
	mkdir -p "$DIR/$1/log"
	[ "$1" = cp ] || cat /proc/sys/kernel/random/uuid >"$DIR/$1/boot_id"
	setsid "$HERE/kube.sh" _enter "$SITE" "$1" </dev/null >>"$DIR/$1/log/init" 2>&1 9>&- &
	echo "$! $(start_time $!)" >"$DIR/$1/pid"
}

enter() { # MACHINE: into its cgroups and namespaces, by exec: the recorded pid stays
	own_cgroups "$1"
	exec ip netns exec "$(netns "$1")" unshare -m -u -i -C -p -f --kill-child --propagation private \
		--mount-proc "$HERE/kube.sh" _init "$SITE" "$1"
}

own_cgroups() { # MACHINE: one in every v1 hierarchy, below the present one
	local lines controllers path g
	lines=$(</proc/self/cgroup) # now: it changes as we move
	: >"$DIR/$1/cgroups"
	while IFS=: read -r _ controllers path; do
		[ -n "$controllers" ] || continue # the v2 hierarchy
		g=/sys/fs/cgroup/${controllers#name=}${path%/}/$P$SITE-$1
		echo "$g" >>"$DIR/$1/cgroups"
		mkdir -p "$g"
		if [ -f "$g/cpuset.cpus" ]; then
			cat "${g%/*}/cpuset.cpus" >"$g/cpuset.cpus"
			cat "${g%/*}/cpuset.mems" >"$g/cpuset.mems"
		fi
		echo $$ >"$g/cgroup.procs"
	done <<<"$lines"
	[ -s "$DIR/$1/cgroups" ] || die "no cgroup v1 hierarchies here"
}

power_off() { # MACHINE
	local pid g n
	if alive "$1"; then
		read -r pid _ <"$DIR/$1/pid"
		kill -9 "$pid"
	fi
	rm -f "$DIR/$1/pid"
	if [ -f "$DIR/$1/cgroups" ]; then
		while read -r g; do
			for ((n = 0; n < 100; n++)); do
				[ -d "$g" ] || break
				find "$g" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
			done
			[ ! -d "$g" ] || say "still there: $g"
		done <"$DIR/$1/cgroups"
		rm -f "$DIR/$1/cgroups"
	fi
	[ "$1" = cp ] || drop_netns "$(netns "$1")" # the control plane's carries the links of the nodes
}

in_machine() { # MACHINE COMMAND...
	local m=$1 pid; shift
	alive "$m" || die "$SITE-$m is not up"
	read -r pid _ <"$DIR/$m/pid"
	pid=$(pgrep -P "$pid") || die "$SITE-$m has no init yet"
	nsenter -t "$pid" -m -n -u -i -C -p -- "$@"
}

# ---- inside a machine (pid 1)

keep() { # NAME COMMAND...: in the background, and again when it ends
	local name=$1; shift
	while :; do
		"$@" </dev/null >>"$DIR/$M/log/$name" 2>&1 || true
		sleep 1
	done &
}

cp_init() {
	local p=$DIR/pki d=$DIR/cp
	hostname "$SITE-cp"
	keep etcd etcd --data-dir "$d/etcd" --unsafe-no-fsync --log-level=warn \
		--listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
		--listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
		--initial-cluster default=http://127.0.0.1:2380
	# Aggregator routing: webhooks given as a Service are reached without a kube-proxy here.
	keep apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
		--advertise-address="10.$N.0.1" --secure-port=6443 --service-cluster-ip-range="$SERVICES" \
		--tls-cert-file="$p/apiserver.crt" --tls-private-key-file="$p/apiserver.key" --client-ca-file="$p/ca.crt" \
		--kubelet-client-certificate="$p/kubelet-client.crt" --kubelet-client-key="$p/kubelet-client.key" \
		--kubelet-preferred-address-types=InternalIP \
		--service-account-issuer=https://kubernetes.default.svc \
		--service-account-key-file="$p/sa.pub" --service-account-signing-key-file="$p/sa.key" \
		--authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
		--enable-aggregator-routing=true \
		--requestheader-client-ca-file="$p/ca.crt" --requestheader-allowed-names=front-proxy \
		--requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
		--requestheader-extra-headers-prefix=X-Remote-Extra- \
		--proxy-client-cert-file="$p/front-proxy.crt" --proxy-client-key-file="$p/front-proxy.key"
	until kubectl --kubeconfig "$DIR/admin.kubeconfig" get --raw /readyz >/dev/null 2>&1; do sleep 0.3; done
	keep controller-manager kube-controller-manager $(client_flags controller-manager) \
		--service-account-private-key-file="$p/sa.key" --root-ca-file="$p/ca.crt" --use-service-account-credentials \
		--cluster-signing-cert-file="$p/ca.crt" --cluster-signing-key-file="$p/ca.key"
	keep scheduler kube-scheduler $(client_flags scheduler)
	wait
}

client_flags() {
	local k=$DIR/$1.kubeconfig
	echo "--kubeconfig=$k --authentication-kubeconfig=$k --authorization-kubeconfig=$k --bind-address=127.0.0.1 --leader-elect=false"
}

node_init() {
	local name=$SITE-$M i
	hostname "$name"
	node_root
	node_config
	keep containerd containerd -c /etc/containerd/lab.toml
	until [ -S /run/containerd/containerd.sock ] && ctr version >/dev/null 2>&1; do sleep 0.1; done
	for i in "$CACHE/pause.tar" "$DIR"/images/*.tar; do
		[ ! -f "$i" ] || [ "$DIR/$M/imported" -nt "$i" ] || ctr -n k8s.io images import "$i" >/dev/null
	done
	touch "$DIR/$M/imported"
	keep kubelet kubelet --config=/etc/kubernetes/kubelet.yaml --kubeconfig="$DIR/$name.kubeconfig" \
		--hostname-override="$name" --node-ip="10.$N.0.$((10 + ${M#n})),fd00:$N::$((10 + ${M#n}))"
	keep proxy kube-proxy --config=/etc/kubernetes/proxy.yaml --hostname-override="$name"
	wait
}

# The files of the host, copy on write; /run and /tmp empty, /dev and /sys its own.
node_root() {
	local d=$DIR/$M r=$DIR/$M/root f controllers
	mkdir -p "$d"/{root,files,work,containerd,kubelet}
	mount -t overlay overlay -o "lowerdir=/,upperdir=$d/files,workdir=$d/work" "$r"
	mount -t proc proc "$r/proc"
	mount -t sysfs sysfs "$r/sys"
	mount -t bpf bpf "$r/sys/fs/bpf"
	mount -t tmpfs -o mode=755 tmpfs "$r/run"
	mount -t tmpfs tmpfs "$r/tmp"
	mkdir -p "$r"/run/{lock,netns} "$r"/var/lib/{containerd,kubelet} "$r/$CACHE"
	mount --bind "$CACHE" "$r/$CACHE"
	mount --bind "$d/containerd" "$r/var/lib/containerd"
	mount --bind "$d/kubelet" "$r/var/lib/kubelet"

	mount -t tmpfs -o mode=755 tmpfs "$r/dev"
	mkdir "$r"/dev/{net,pts,shm,mqueue}
	for f in null zero full random urandom tty kmsg fuse net/tun; do
		[ ! -e "/dev/$f" ] || cp -a "/dev/$f" "$r/dev/$f"
	done
	mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$r/dev/pts"
	mount -t tmpfs tmpfs "$r/dev/shm"
	mount -t mqueue mqueue "$r/dev/mqueue"
	ln -s pts/ptmx "$r/dev/ptmx"
	ln -s /proc/self/fd "$r/dev/fd"
	for f in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${f%:*}" "$r/dev/${f#*:}"; done

	mount -t tmpfs -o mode=755 tmpfs "$r/sys/fs/cgroup"
	while IFS=: read -r _ controllers _; do
		[ -n "$controllers" ] || continue
		f=$r/sys/fs/cgroup/${controllers#name=}
		mkdir "$f"
		case $controllers in name=*) controllers=none,$controllers ;; esac
		mount -t cgroup -o "$controllers" cgroup "$f"
	done </proc/self/cgroup
	fake_proc "$r"

	cd "$r"
	pivot_root . .
	umount -l .
	cd /
	mount --make-rshared /
}

# kubelet sets these for the whole kernel: let it write to look-alikes. A new boot id
# at every start is how a restart is told from a pause.
fake_proc() { # ROOT
	local kv f n=0
	mkdir "$1/run/proc"
	for kv in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
		kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000 \
		"kernel/random/boot_id=$(<"$DIR/$M/boot_id")"; do
		f=$1/run/proc/$((n += 1))
		echo "${kv#*=}" >"$f"
		mount --bind "$f" "$1/proc/sys/${kv%%=*}"
	done
}

node_config() {
	local i=${M#n}
	mkdir -p /etc/containerd /etc/kubernetes /etc/cni/net.d
	echo "$SITE-$M" | md5sum | cut -c1-32 >/etc/machine-id
	echo "$SITE-$M" >/etc/hostname
	cat >/etc/containerd/lab.toml <<-E
		version = 2
		[plugins."io.containerd.grpc.v1.cri"]
		  sandbox_image = "lab.test/pause:1"
		  restrict_oom_score_adj = true
		  disable_apparmor = true
		  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
		    runtime_type = "io.containerd.runc.v2"
		  [plugins."io.containerd.grpc.v1.cri".cni]
		    bin_dir = "/usr/lib/cni"
		    conf_dir = "/etc/cni/net.d"
	E
	rm -f /etc/cni/net.d/*
	cat >/etc/cni/net.d/10-lab.conflist <<-E
		{"cniVersion": "0.4.0", "name": "lab", "plugins": [
		  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
		   "ipam": {"type": "host-local",
		            "ranges": [[{"subnet": "10.$N.$i.0/24"}], [{"subnet": "fd00:$N:0:$i::/64"}]],
		            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
		  {"type": "portmap", "capabilities": {"portMappings": true}}]}
	E
	cat >/etc/kubernetes/kubelet.yaml <<-E
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: "$DIR/pki/ca.crt"}}
		authorization: {mode: Webhook}
		address: 10.$N.0.$((10 + i))
		nodeStatusUpdateFrequency: 2s
		nodeStatusReportFrequency: 5m
		containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
		cgroupDriver: cgroupfs
		failCgroupV1: false
		failSwapOn: false
		oomScoreAdj: 0
		clusterDomain: cluster.local
		resolvConf: ""
		imageGCHighThresholdPercent: 100
		evictionHard: {nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%", memory.available: "100Mi"}
	E
	cat >/etc/kubernetes/proxy.yaml <<-E
		apiVersion: kubeproxy.config.k8s.io/v1alpha1
		kind: KubeProxyConfiguration
		mode: nftables
		clusterCIDR: "10.$N.0.0/16,fd00:$N::/32"
		clientConnection: {kubeconfig: "$DIR/proxy.kubeconfig"}
		conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
	E
}

# ---- commands

lock() { mkdir -p "$CACHE/sites"; exec 9>"$CACHE/sites/.$1"; flock 9; }

kubectl_site() { ip netns exec "${P}ops" kubectl --kubeconfig "$DIR/admin.kubeconfig" "$@"; }

up() { # [NODES]
	local i n=${1:-}
	case $n in '' | [1-9]) ;; *) die "NODES is 1 to $MAX_NODES" ;; esac
	for i in $PROGRAMS; do [ -x "$CACHE/bin/$i" ] || die "no $i in the cache, run: $0 build"; done
	[ -n "$n" ] || n=$(machines | grep -c ^n) || n=1
	cp_network
	keys
	cp_start
	for ((i = 1; i <= n; i++)); do node_start "n$i"; done
	for ((i = 1; i <= n; i++)); do node_ready "n$i"; done
	echo "$DIR/admin.kubeconfig"
}

cp_start() {
	alive cp && return
	power_off cp # what an end without "kill" left behind
	power_on cp
}

node_start() { # MACHINE
	alive "$1" && return
	power_off "$1"
	kubeconfig "$SITE-$1" "/O=system:nodes/CN=system:node:$SITE-$1"
	node_network "$1"
	power_on "$1"
}

api_ready() {
	local n
	for ((n = 0; n < 300; n++)); do
		! kubectl_site get --raw /readyz >/dev/null 2>&1 || return 0
		sleep 0.3
	done
	die "the API server of $SITE does not answer, see $DIR/cp/log"
}

node_ready() { # MACHINE
	local name=$SITE-$1 i=${1#n} pods
	api_ready
	pods="\"10.$N.$i.0/24\",\"fd00:$N:0:$i::/64\""
	kubectl_site wait --for=create "node/$name" --timeout=120s >/dev/null &&
		kubectl_site patch node "$name" -p "{\"spec\":{\"podCIDR\":${pods%%,*},\"podCIDRs\":[$pods]}}" >/dev/null &&
		kubectl_site wait --for="jsonpath={.status.nodeInfo.bootID}=$(<"$DIR/$1/boot_id")" "node/$name" --timeout=120s >/dev/null &&
		kubectl_site wait --for=condition=Ready "node/$name" --timeout=120s >/dev/null ||
		die "$name is not ready, see $DIR/$1/log"
}

load() { # IMAGE [NAME=]FILE...
	local tar m
	[ $# -ge 2 ] || die "usage: kube.sh load SITE IMAGE [NAME=]STATIC-BINARY [[NAME=]FILE...]"
	mkdir -p "$DIR/images"
	tar=$DIR/images/$(printf %s "$1" | tr -c 'A-Za-z0-9._-' _).tar
	mkimg -o "$tar" -ref "$1" ${IMAGE_USER:+-user "$IMAGE_USER"} "${@:2}"
	for m in $(machines); do
		[ "$m" = cp ] || ! alive "$m" || in_machine "$m" ctr -n k8s.io images import "$tar" >/dev/null
	done
}

down() {
	local m
	for m in $(machines); do power_off "$m"; done
	drop_netns "$(netns cp)"
	rm -rf --one-file-system "$DIR"
	ls "$CACHE"/sites/*/ >/dev/null 2>&1 && return
	drop_netns "${P}ops"
	drop_netns "${P}wan"
	rm -f "$CACHE/uplink"
}

main() {
	case ${1:-} in
	packages) root; install_packages ;;
	build) shift; build "$@" ;;
	up) site "${2:-}"; lock "$SITE"; up "${3:-}" ;;
	kubectl) site "${2:-}"; shift 2; kubectl_site "$@" ;;
	ops) shift; root; exec ip netns exec "${P}ops" "$@" ;;
	load) site "${2:-}"; lock "$SITE"; shift 2; load "$@" ;;
	node) site "${2:-}"; m=$(machine "${3:-}"); shift 3; in_machine "$m" "$@" ;;
	uplink) lock uplink; uplink ;;
	kill) site "${2:-}"; lock "$SITE"; m=$(machine "${3:-}"); power_off "$m" ;;
	start) site "${2:-}"; lock "$SITE"; m=$(machine "${3:-}")
		if [ "$m" = cp ]; then cp_start; api_ready; else node_start "$m"; node_ready "$m"; fi ;;
	down) for s in ${2:-east west}; do site "$s"; lock "$SITE"; down; done ;;
	_enter) site "$2"; enter "$3" ;;
	_init) site "$2"; M=$3; case $M in cp) cp_init ;; *) node_init ;; esac ;;
	*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;;
	esac
}
main "$@"; exit # on one line: the file may change while a machine runs
