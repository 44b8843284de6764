/* SPDX-License-Identifier: Apache-2.0 */

/* What leaves for another site goes into its tunnel, if the other end takes it there; else it leaves as it is. */
#ifndef CREM_WAN_OUT_H
#define CREM_WAN_OUT_H

#include "wan_colour.h"
#include "wan_queue.h"

#define OUTER_TTL 64
#define DONT_FRAGMENT 0x4000

/* Inner ECT(1) becomes ECT(0): outside ECT(1) is the early warning of the domain (agent/ecn, table.go). */
static __always_inline __u8 outer_codepoint(__u16 mode, __u8 inner)
{
	if (mode == MODE_COMPATIBILITY)
		return NOT_ECT;
	return inner == ECT1 ? ECT0 : inner;
}

#define FNV_PRIME 16777619U
#define LABEL_MASK 0xfffffU

/* Spreads inner flows over equal paths (RFC 6438): the inner label, else FNV-1a over addresses and ports. */
static __always_inline __u32 flow_label(struct head *h)
{
	__u32 hash = 2166136261U;
	__u8 *ports = (__u8 *)h->ports;

	if (h->label)
		return bpf_ntohl(h->label);
	UNROLLED
	for (int i = 0; i < 16; i++)
		if (h->v6 || i >= 12)
			hash = (hash ^ h->flow.src[i]) * FNV_PRIME;
	UNROLLED
	for (int i = 0; i < 16; i++)
		if (h->v6 || i >= 12)
			hash = (hash ^ h->flow.dst[i]) * FNV_PRIME;
	UNROLLED
	for (int i = 0; i < 4; i++)
		hash = (hash ^ ports[i]) * FNV_PRIME;
	hash = (hash ^ hash >> 20) & LABEL_MASK;
	return hash ? hash : 1;
}

static __always_inline bool mapped(__u8 *addr)
{
	__u32 *w = (__u32 *)addr;

	return !w[0] && !w[1] && w[2] == bpf_htonl(0xffff);
}

static __always_inline __u16 checksum(struct iphdr *ip)
{
	__u64 sum = bpf_csum_diff(0, 0, (__be32 *)ip, sizeof(*ip), 0);

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline bool write_ipv4(struct __sk_buff *skb, struct tunnel *t, struct head *h, __u8 class)
{
	struct iphdr ip = {
		.version = 4,
		.ihl = 5,
		.tos = class,
		.tot_len = bpf_htons(h->len + sizeof(ip)),
		.frag_off = bpf_htons(DONT_FRAGMENT), /* so the Identification may be anything (RFC 6864) */
		.ttl = OUTER_TTL,
		.protocol = h->v6 ? IPPROTO_IPV6 : IPPROTO_IPIP,
	};
	__be16 ethertype = bpf_htons(ETH_P_IP);

	__builtin_memcpy(&ip.saddr, t->local + 12, 4);
	__builtin_memcpy(&ip.daddr, t->remote + 12, 4);
	ip.check = checksum(&ip);
	return !bpf_skb_adjust_room(skb, sizeof(ip), BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0) &&
	       !bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &ethertype, sizeof(ethertype), 0);
}

static __always_inline bool write_ipv6(struct __sk_buff *skb, struct tunnel *t, struct head *h, __u8 class)
{
	struct ipv6hdr ip = {
		.payload_len = bpf_htons(h->len),
		.nexthdr = h->v6 ? IPPROTO_IPV6 : IPPROTO_IPIP,
		.hop_limit = OUTER_TTL,
	};
	__be32 first = bpf_htonl(6U << 28 | (__u32)class << 20 | flow_label(h));
	__be16 ethertype = bpf_htons(ETH_P_IPV6);

	__builtin_memcpy(&ip, &first, sizeof(first));
	__builtin_memcpy(&ip.saddr, t->local, 16);
	__builtin_memcpy(&ip.daddr, t->remote, 16);
	return !bpf_skb_adjust_room(skb, sizeof(ip), BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0) &&
	       !bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &ethertype, sizeof(ethertype), 0);
}

/* marks is the ECN field and the colour. */
static __always_inline bool encapsulate(struct __sk_buff *skb, struct tunnel *t, struct head *h, __u8 marks)
{
	__u8 class = (h->class & ~CODEPOINT) | marks;

	return mapped(t->remote) ? write_ipv4(skb, t, h, class) : write_ipv6(skb, t, h, class);
}

static __always_inline __u32 overhead(struct tunnel *t)
{
	return mapped(t->remote) ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

/* A request shows the way that the flows will take: by its uplink and its next hop. With another one the tunnel waits for
 * the answer. */
static __always_inline void learn_way(struct __sk_buff *skb, struct tunnel *t)
{
	__u64 hop = 0;

	if (bpf_skb_load_bytes(skb, 0, &hop, ETH_ALEN) || (t->hop == hop && t->ifindex == skb->ifindex))
		return;
	t->until = 0;
	t->hop = hop;
	t->ifindex = skb->ifindex;
}

static __always_inline int request(struct __sk_buff *skb, struct head *h)
{
	struct ends ends;
	struct end *end;
	struct tunnel *t;
	__u32 index;

	if (skb->gso_size)
		return TCX_NEXT;
	__builtin_memcpy(ends.local, h->flow.src, 16);
	__builtin_memcpy(ends.remote, h->flow.dst, 16);
	end = bpf_map_lookup_elem(&crem_wan_ends, &ends);
	if (!end)
		return TCX_NEXT;
	index = end->tunnel;
	t = bpf_map_lookup_elem(&crem_wan_tunnels, &index);
	if (!t || !is_tunnel_message(skb, h, t->port))
		return TCX_NEXT;
	learn_way(skb, t);
	/* It must come by the tunnel or not at all: its answer opens the tunnel. */
	if (!encapsulate(skb, t, h, outer_codepoint(t->mode, h->class & CODEPOINT)))
		return drop(PLAIN_REFUSED);
	t->asked = bpf_ktime_get_ns();
	return TCX_NEXT;
}

/* Whether a packet comes before its flow may send it. */
static __always_inline bool over_rate(struct flow_name *flow, __u32 len, __u64 now)
{
	struct limit *l = bpf_map_lookup_elem(&crem_wan_limits, flow);
	__u64 old, next;

	if (!l || now >= READ_ONCE(l->until))
		return false;
	old = READ_ONCE(l->next);
	next = now - l->burst_ns;
	if ((__s64)(old - next) > 0)
		next = old;
	next += len * l->ns_per_kib >> 10;
	if ((__s64)(next - now) > 0)
		return true;
	__sync_val_compare_and_swap(&l->next, old, next);
	return false;
}

static __always_inline bool too_big(struct head *h, struct tunnel *t, __u64 now)
{
	__u64 *wide;

	if (h->len + overhead(t) > t->mtu) {
		bpf_map_update_elem(&crem_wan_wide, &h->flow, &now, BPF_ANY);
		return true;
	}
	wide = bpf_map_lookup_elem(&crem_wan_wide, &h->flow);
	return wide && now - *wide < WIDE_NS;
}

/* Puts a packet that is measured into its tunnel. */
static __always_inline bool encapsulate_coloured(struct __sk_buff *skb, struct tunnel *t, struct head *h, __u32 tunnel, __u8 codepoint)
{
	struct moment m = moment();
	struct flow_counts *f;

	if (!encapsulate(skb, t, h, codepoint | (m.period & 1 ? COLOUR : 0)))
		return false;
	f = counts_of(&crem_wan_entered, h, tunnel, &m);
	if (f)
		add_packet(f, &m, m.period);
	return true;
}

static __always_inline int leave(struct __sk_buff *skb, struct head *h)
{
	struct place *to = place_of(h->flow.dst), *from;
	struct tunnel *t;
	__u32 index;
	__u64 now, hop;
	enum passage passage = ENCAPSULATED;
	__u8 codepoint;

	if (!to || !travels(h, to))
		return request(skb, h);
	if (to->tunnel == NO_TUNNEL)
		return TCX_NEXT;
	index = to->tunnel;
	from = place_of(h->flow.src);
	t = bpf_map_lookup_elem(&crem_wan_tunnels, &index);
	if (!t || !from || from->site != OWN_SITE || !read_qpn(skb, h) || h->at + h->len > skb->len)
		return TCX_NEXT;
	if (skb->gso_size)
		return pass(PLAIN_SUPER);
	now = bpf_ktime_get_ns();
	if (now >= READ_ONCE(t->until))
		return pass(PLAIN_NO_LEASE);
	if (t->ifindex != skb->ifindex)
		return pass(PLAIN_UPLINK);
	if (too_big(h, t, now))
		return pass(PLAIN_TOO_BIG);
	if (over_rate(&h->flow, h->len, now)) {
		passage = OVER_RATE_NOT_ECT;
		if (h->class & CODEPOINT) {
			set_codepoint(skb, h, CE);
			passage = OVER_RATE;
		}
	}
	codepoint = mark_by_queue(&h->flow, index, t, outer_codepoint(t->mode, h->class & CODEPOINT), now);
	hop = t->hop;
	if (!(to->measured && measurable(h) ? encapsulate_coloured(skb, t, h, index, codepoint) : encapsulate(skb, t, h, codepoint)))
		return pass(PLAIN_REFUSED);
	bpf_skb_store_bytes(skb, 0, &hop, ETH_ALEN, 0);
	return pass(passage);
}

#endif
