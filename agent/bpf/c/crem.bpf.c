// SPDX-License-Identifier: Apache-2.0

/* The two programs of an uplink. They share all maps with those of the node's other uplinks. */
#include "boundary.h"
#include "flow.h"

char _license[] SEC("license") = "Apache-2.0";

SEC("tcx/ingress")
int crem_ingress(struct __sk_buff *skb)
{
	struct view v = {};

	if (skb->mark == mark) { /* injected by us: from here on it is a packet like every other */
		skb->mark = 0;
		return pass(TURNED);
	}
	if (!find_udp(skb, &v))
		return TCX_NEXT;
	if (v.port == ROCE_PORT)
		return roce(skb, &v);
	return crem(skb, &v);
}

/* Turns injected frames round into the uplink's receive path. */
SEC("tcx/egress")
int crem_egress(struct __sk_buff *skb)
{
	if (skb->mark != mark)
		return TCX_NEXT;
	count(REDIRECTED);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}
