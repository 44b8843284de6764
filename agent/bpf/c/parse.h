/* SPDX-License-Identifier: Apache-2.0 */

/* Where the UDP header of a packet is. Headers are always read by bpf_skb_load_bytes: those of large packets are often
 * not in the linear part, and direct access would miss them in silence. */
#ifndef CREM_PARSE_H
#define CREM_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include "maps.h"

struct view {
	struct flow_key key; /* the addresses */
	__u32 ip;            /* offset of the IP header */
	bool bare;           /* no Ethernet header belongs to the packet; see link.h */
	__u32 l4;            /* offset of the UDP header */
	__u32 end;           /* offset of the end of the IP packet */
	__u16 port;          /* destination */
	__u16 udp_len;
	bool vlan;
	bool fragment;
	bool options;
	bool extension;
};

static __always_inline bool find_ipv4(struct __sk_buff *skb, struct view *v)
{
	struct iphdr ip;
	__u16 fragment;

	if (bpf_skb_load_bytes(skb, v->ip, &ip, sizeof(ip)))
		return false;
	fragment = bpf_ntohs(ip.frag_off);
	/* Only a first fragment shows its ports. */
	if (ip.version != 4 || ip.ihl < 5 || ip.protocol != IPPROTO_UDP || fragment & 0x1fff)
		return false;
	v->fragment = fragment & 0x2000;
	v->options = ip.ihl > 5;
	v->l4 = v->ip + ip.ihl * 4;
	v->end = v->ip + bpf_ntohs(ip.tot_len);
	map_ipv4(v->key.src, ip.saddr);
	map_ipv4(v->key.dst, ip.daddr);
	return true;
}

#define MOST_EXTENSIONS 8

struct walk {
	struct __sk_buff *skb;
	__u32 at;  /* offset of the header that next names */
	__u8 next; /* protocol */
	bool fragment;
	bool failed;
};

/* Goes past one extension header. Returns 1 to stop. */
static long past_extension(__u32 i, struct walk *w)
{
	struct {
		__u8 next;
		__u8 len;
		__be16 fragment;
	} ext;

	(void)i;
	if (w->next == IPPROTO_UDP)
		return 1;
	if ((w->next != IPPROTO_HOPOPTS && w->next != IPPROTO_ROUTING && w->next != IPPROTO_DSTOPTS &&
	     w->next != IPPROTO_FRAGMENT && w->next != IPPROTO_AH) ||
	    bpf_skb_load_bytes(w->skb, w->at, &ext, sizeof(ext))) {
		w->failed = true;
		return 1;
	}
	if (w->next == IPPROTO_FRAGMENT) {
		w->fragment = true;
		if (bpf_ntohs(ext.fragment) & 0xfff8) { /* the ports are in another fragment */
			w->failed = true;
			return 1;
		}
		w->at += 8;
	} else if (w->next == IPPROTO_AH) {
		w->at += (ext.len + 2) * 4;
	} else {
		w->at += (ext.len + 1) * 8;
	}
	w->next = ext.next;
	return 0;
}

/* Not inlined, so that the walk has a stack of its own: compilers use a place twice, and without the capability PERFMON the verifier lets nothing overwrite
 * half of a place in which a pointer was kept. */
static __attribute__((noinline)) bool find_ipv6(struct __sk_buff *skb, struct view *v)
{
	struct ipv6hdr ip;
	struct walk w = { .skb = skb, .at = v->ip + sizeof(ip) };

	if (bpf_skb_load_bytes(skb, v->ip, &ip, sizeof(ip)) || ip.version != 6)
		return false;
	w.next = ip.nexthdr;
	if (w.next != IPPROTO_UDP) {
		bpf_loop(MOST_EXTENSIONS, past_extension, &w, 0);
		v->extension = true;
		v->fragment = w.fragment;
	}
	if (w.failed || w.next != IPPROTO_UDP)
		return false;
	v->l4 = w.at;
	v->end = v->ip + sizeof(ip) + bpf_ntohs(ip.payload_len);
	__builtin_memcpy(v->key.src, &ip.saddr, 16);
	__builtin_memcpy(v->key.dst, &ip.daddr, 16);
	return true;
}

/* True for a UDP packet whose ports are there. A tag with VLAN 0 is a priority only: the kernel takes such a packet as
 * untagged, so the boundary must too. */
static __always_inline bool find_udp(struct __sk_buff *skb, struct view *v)
{
	struct udphdr udp;
	bool found = false;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		found = find_ipv4(skb, v);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		found = find_ipv6(skb, v);
	if (!found || bpf_skb_load_bytes(skb, v->l4, &udp, sizeof(udp)))
		return false;
	v->vlan = skb->vlan_present && skb->vlan_tci & 0xfff;
	v->port = bpf_ntohs(udp.dest);
	v->udp_len = bpf_ntohs(udp.len);
	return true;
}

#endif
