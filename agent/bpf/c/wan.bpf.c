// SPDX-License-Identifier: Apache-2.0

/* The two programs of the tunnels between sites, on the uplinks. On ingress this one comes before crem_ingress, which so sees
 * the inner packet; on egress after crem_egress, which has taken injected frames away. */
#include <stddef.h>

#include "wan_in.h"
#include "wan_out.h"

char _license[] SEC("license") = "Apache-2.0";

static __always_inline bool tagged(struct __sk_buff *skb)
{
	return skb->vlan_present && skb->vlan_tci & 0xfff;
}

SEC("tcx/ingress")
int crem_wan_in(struct __sk_buff *skb)
{
	return skb->mark == mark || tagged(skb) ? TCX_NEXT : arrive(skb);
}

SEC("tcx/egress")
int crem_wan_out(struct __sk_buff *skb)
{
	struct head h = {};
	bool v6 = skb->protocol == bpf_htons(ETH_P_IPV6);

	if (skb->mark == mark || tagged(skb) || (!v6 && skb->protocol != bpf_htons(ETH_P_IP)) ||
	    !read_head(skb, &h, ETH_HLEN, v6))
		return TCX_NEXT;
	return leave(skb, &h);
}
