/* SPDX-License-Identifier: Apache-2.0 */

/* A UDP packet that may stand in a tunnel: one IP header without options or extensions, no fragment. Headers are always read
 * by bpf_skb_load_bytes: those of large packets are often not in the linear part. */
#ifndef CREM_WAN_HEAD_H
#define CREM_WAN_HEAD_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include "wan_maps.h"

#define CODEPOINT 3
#define NOT_ECT 0
#define ECT1 1
#define ECT0 2
#define CE 3

struct head {
	struct flow_name flow; /* without the queue pair */
	__u32 at;              /* offset of the IP header */
	__u32 l4;              /* offset of the UDP header */
	__u32 len;             /* octets of the packet */
	__be32 label;          /* of IPv6 */
	__be16 ports[2];
	__u8 class;            /* DSCP and ECN */
	bool v6;
};

static __always_inline bool read_ipv4(struct __sk_buff *skb, struct head *h)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, h->at, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl != 5 ||
	    ip.protocol != IPPROTO_UDP || ip.frag_off & bpf_htons(0x3fff))
		return false;
	h->l4 = h->at + sizeof(ip);
	h->len = bpf_ntohs(ip.tot_len);
	h->class = ip.tos;
	map_ipv4(h->flow.src, ip.saddr);
	map_ipv4(h->flow.dst, ip.daddr);
	return true;
}

static __always_inline bool read_ipv6(struct __sk_buff *skb, struct head *h)
{
	struct ipv6hdr ip;
	__be32 first;

	if (bpf_skb_load_bytes(skb, h->at, &ip, sizeof(ip)) || ip.version != 6 || ip.nexthdr != IPPROTO_UDP)
		return false;
	__builtin_memcpy(&first, &ip, sizeof(first));
	h->v6 = true;
	h->l4 = h->at + sizeof(ip);
	h->len = sizeof(ip) + bpf_ntohs(ip.payload_len);
	h->class = bpf_ntohl(first) >> 20;
	h->label = first & bpf_htonl(0xfffff);
	__builtin_memcpy(h->flow.src, &ip.saddr, 16);
	__builtin_memcpy(h->flow.dst, &ip.daddr, 16);
	return true;
}

static __always_inline bool read_head(struct __sk_buff *skb, struct head *h, __u32 at, bool v6)
{
	h->at = at;
	return (v6 ? read_ipv6(skb, h) : read_ipv4(skb, h)) &&
	       !bpf_skb_load_bytes(skb, h->l4, h->ports, sizeof(h->ports));
}

/* Whether the packet is of a transport that travels in the tunnel of a site. */
static __always_inline bool travels(struct head *h, struct place *site)
{
	return h->ports[1] == bpf_htons(ROCE_PORT) || (site->veroce_port && h->ports[1] == bpf_htons(site->veroce_port));
}

#define BTH_QPN 4 /* offset in the BTH */

/* Reads the destination queue pair of a packet of any transport. */
static __always_inline bool read_qpn(struct __sk_buff *skb, struct head *h)
{
	__be32 qpn;

	if (bpf_skb_load_bytes(skb, h->l4 + sizeof(struct udphdr) + BTH_QPN, &qpn, sizeof(qpn)))
		return false;
	h->flow.qpn = bpf_ntohl(qpn) & 0xffffff;
	return true;
}

/* A request for the tunnel, from gateway to gateway (Version 1, type 13). */
#define TUNNEL_MESSAGE 0x1d

static __always_inline bool is_tunnel_message(struct __sk_buff *skb, struct head *h, __u16 port)
{
	__u8 first;

	return h->ports[1] == bpf_htons(port) &&
	       !bpf_skb_load_bytes(skb, h->l4 + sizeof(struct udphdr), &first, sizeof(first)) && first == TUNNEL_MESSAGE;
}

static __always_inline struct place *place_of(__u8 *addr)
{
	struct netmask p = { .len = 128 };

	__builtin_memcpy(p.addr, addr, 16);
	return bpf_map_lookup_elem(&crem_wan_places, &p);
}

/* Sets the ECN field of the IP header at an offset; an IPv4 checksum follows by the difference (RFC 1624). */
static __always_inline void set_codepoint(struct __sk_buff *skb, struct head *h, __u8 codepoint)
{
	__u8 class = (h->class & ~CODEPOINT) | codepoint;

	if (h->v6) {
		__u8 second;

		if (bpf_skb_load_bytes(skb, h->at + 1, &second, 1))
			return;
		second = (second & 0x0f) | class << 4;
		bpf_skb_store_bytes(skb, h->at + 1, &second, 1, BPF_F_RECOMPUTE_CSUM);
	} else {
		bpf_l3_csum_replace(skb, h->at + 10, bpf_htons(0x4500 | h->class), bpf_htons(0x4500 | class), 2);
		bpf_skb_store_bytes(skb, h->at + 1, &class, 1, 0);
	}
	h->class = class;
}

#endif
