/* SPDX-License-Identifier: Apache-2.0 */

/* What arrives in a tunnel of ours loses its outer header, and keeps what that says of congestion. */
#ifndef CREM_WAN_IN_H
#define CREM_WAN_IN_H

#include "wan_colour.h"
#include "wan_tell.h"

#ifndef BPF_F_ADJ_ROOM_DECAP_L3_IPV4
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV4 (1ULL << 7)
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV6 (1ULL << 8)
#endif

struct outer {
	struct ends ends;
	__u32 len; /* octets of the packet */
	__u32 head; /* octets of its header */
	__u8 class; /* DSCP and ECN */
	__u8 codepoint;
	__u8 protocol;
};

static __always_inline bool outer_ipv4(struct __sk_buff *skb, struct outer *o, struct iphdr *ip)
{
	if (bpf_skb_load_bytes(skb, ETH_HLEN, ip, sizeof(*ip)) || ip->version != 4)
		return false;
	o->len = bpf_ntohs(ip->tot_len);
	o->head = sizeof(*ip);
	o->class = ip->tos;
	o->codepoint = o->class & CODEPOINT;
	o->protocol = ip->protocol;
	map_ipv4(o->ends.remote, ip->saddr);
	map_ipv4(o->ends.local, ip->daddr);
	return true;
}

static __always_inline bool outer_ipv6(struct __sk_buff *skb, struct outer *o)
{
	struct ipv6hdr ip;
	__be32 first;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.version != 6)
		return false;
	__builtin_memcpy(&first, &ip, sizeof(first));
	o->len = sizeof(ip) + bpf_ntohs(ip.payload_len);
	o->head = sizeof(ip);
	o->class = bpf_ntohl(first) >> 20;
	o->codepoint = o->class & CODEPOINT;
	o->protocol = ip.nexthdr;
	__builtin_memcpy(o->ends.remote, &ip.saddr, 16);
	__builtin_memcpy(o->ends.local, &ip.daddr, 16);
	return true;
}

/* The one's complement sum of a right header is all ones. */
static __always_inline bool wrong_checksum(struct iphdr *ip)
{
	__u64 sum = bpf_csum_diff(0, 0, (__be32 *)ip, sizeof(*ip), 0);

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum != 0xffff;
}

static __always_inline bool same(const void *a, const void *b)
{
	const __u32 *x = a, *y = b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3];
}

/* What belongs into the tunnel: RDMA from the site at its other end to the own one, and that end's requests. */
static __always_inline bool belongs(struct __sk_buff *skb, struct head *h, struct outer *o, struct end *end)
{
	struct place *from = place_of(h->flow.src), *to;
	struct tunnel *t;
	__u32 index = end->tunnel;

	if (from && from->site == end->site && travels(h, from)) {
		to = place_of(h->flow.dst);
		return to && to->site == OWN_SITE && read_qpn(skb, h);
	}
	t = bpf_map_lookup_elem(&crem_wan_tunnels, &index);
	return t && same(h->flow.src, o->ends.remote) && same(h->flow.dst, o->ends.local) &&
	       is_tunnel_message(skb, h, t->port);
}

static __always_inline void count_cell(__u8 inner, __u8 outer)
{
	__u32 index = inner << 2 | outer;
	__u64 *n = bpf_map_lookup_elem(&crem_wan_cells, &index);

	if (n)
		*n += 1;
}

/* The table of agent/ecn (table.go). Returns false to drop. Marks are told only if they were made in the tunnel: an inner CE
 * was there before. */
static __always_inline bool carry_over(struct __sk_buff *skb, struct head *h, struct outer *o)
{
	__u8 inner = h->class & CODEPOINT;
	bool capable = inner == ECT0 || inner == ECT1;

	count_cell(inner, o->codepoint);
	if (o->codepoint == CE && inner == NOT_ECT)
		return false;
	if (!capable)
		return true;
	if (o->codepoint == CE) {
		tell(&h->flow, &o->ends, LEVEL_SEVERE, false);
		set_codepoint(skb, h, CE);
	} else if (o->codepoint == ECT1) {
		tell(&h->flow, &o->ends, LEVEL_EARLY, false);
		count(LIGHT);
	}
	return true;
}

/* Takes the outer header off. */
static __always_inline bool strip(struct __sk_buff *skb, struct head *h, struct outer *o)
{
	__be16 ethertype = bpf_htons(h->v6 ? ETH_P_IPV6 : ETH_P_IP);
	__u64 flags = h->v6 ? BPF_F_ADJ_ROOM_DECAP_L3_IPV6 : BPF_F_ADJ_ROOM_DECAP_L3_IPV4;

	return !bpf_skb_adjust_room(skb, -(__s32)o->head, BPF_ADJ_ROOM_MAC, flags) &&
	       !bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &ethertype, sizeof(ethertype), 0);
}

static __always_inline int arrive(struct __sk_buff *skb)
{
	struct outer o = {};
	struct head h = {};
	struct iphdr ip = {};
	struct end *end;
	bool v4 = skb->protocol == bpf_htons(ETH_P_IP);

	if (v4 ? !outer_ipv4(skb, &o, &ip) : skb->protocol != bpf_htons(ETH_P_IPV6) || !outer_ipv6(skb, &o))
		return TCX_NEXT;
	if (o.protocol != IPPROTO_IPIP && o.protocol != IPPROTO_IPV6)
		return TCX_NEXT;
	end = bpf_map_lookup_elem(&crem_wan_ends, &o.ends);
	if (!end)
		return TCX_NEXT; /* a tunnel of others */
	if (v4 && ip.ihl != 5)
		return drop(IN_MALFORMED);
	if (v4 && ip.frag_off & bpf_htons(0x3fff))
		return drop(IN_FRAGMENT);
	if (v4 && wrong_checksum(&ip))
		return drop(IN_CHECKSUM);
	if (skb->gso_size || !read_head(skb, &h, ETH_HLEN + o.head, o.protocol == IPPROTO_IPV6) || h.len + o.head != o.len ||
	    ETH_HLEN + o.len > skb->len)
		return drop(IN_MALFORMED);
	if (!belongs(skb, &h, &o, end))
		return drop(IN_FOREIGN);
	if (end->measured)
		count_arrival(&h, o.class, end->tunnel);
	if (!carry_over(skb, &h, &o))
		return drop(IN_NOT_ECT);
	if (!strip(skb, &h, &o))
		return drop(IN_REFUSED);
	return pass(DECAPSULATED);
}

#endif
