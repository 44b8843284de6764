/* SPDX-License-Identifier: Apache-2.0 */

/* Bare uplinks: devices whose packets have no Ethernet header (xfrm interfaces, TUN, WireGuard, IP tunnels). User space knows
 * frames with one only, so each copy gets a header of zeros with the packet's EtherType; the injector takes it off again. */
#ifndef CREM_LINK_H
#define CREM_LINK_H

#include "parse.h"
#include "ring.h"

/* Where the IP header of a bare packet is: at the front, or behind the Ethernet header of the packet around it, which
 * decryption leaves there; negative if it cannot be told. The kernel's mark of the network header knows, but serves only reads
 * from the linear part; so what it shows is looked for at both places. */
static __attribute__((noinline)) int ip_offset(struct __sk_buff *skb)
{
	__u32 ip[5], at[5]; /* an IPv4 header, half an IPv6 header */

	if (bpf_skb_load_bytes_relative(skb, 0, ip, sizeof(ip), BPF_HDR_START_NET) &&
	    (bpf_skb_pull_data(skb, ETH_HLEN + sizeof(ip)) ||
	     bpf_skb_load_bytes_relative(skb, 0, ip, sizeof(ip), BPF_HDR_START_NET)))
		return -1;
	UNROLLED
	for (int offset = 0; offset <= ETH_HLEN; offset += ETH_HLEN) {
		if (bpf_skb_load_bytes(skb, offset, at, sizeof(at)))
			return -1;
		if (at[0] == ip[0] && at[1] == ip[1] && at[2] == ip[2] && at[3] == ip[3] && at[4] == ip[4])
			return offset;
	}
	return -1;
}

/* Copies the packet up to offset end, behind its Ethernet header or one of zeros. The IP header goes to the same place in
 * both cases: without the capability PERFMON the verifier wants to see one offset there. */
static __always_inline bool copy_packet(struct __sk_buff *skb, struct slot *s, struct view *v, __u32 end)
{
	if (v->bare) {
		__builtin_memset(s->data, 0, 2 * ETH_ALEN);
		*(__be16 *)(s->data + 2 * ETH_ALEN) = skb->protocol;
	} else if (bpf_skb_load_bytes(skb, 0, s->data, ETH_HLEN)) {
		return false;
	}
	return copy(skb, s, ETH_HLEN, v->ip, end - v->ip);
}

#endif
