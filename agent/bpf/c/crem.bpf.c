// SPDX-License-Identifier: Apache-2.0

/* The programs of an uplink: one of the two for ingress, and that for egress. All uplinks of a node share their maps. */
#include "boundary.h"
#include "flow.h"

char _license[] SEC("license") = "Apache-2.0";

static __always_inline struct turns *turns(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&crem_turns, &zero);
}

static __always_inline int ingress(struct __sk_buff *skb, bool bare)
{
	struct view v = { .ip = ETH_HLEN, .bare = bare };

	if (skb->mark == mark) { /* injected by us: from here on it is a packet like every other */
		struct turns *t = turns();

		skb->mark = 0;
		if (t)
			__sync_fetch_and_add(&t->turned, 1);
		return pass(TURNED);
	}
	if (bare) {
		int offset = ip_offset(skb);

		if (offset < 0)
			return TCX_NEXT;
		v.ip = offset;
	}
	if (!find_udp(skb, &v))
		return TCX_NEXT;
	if (is_roce(&v))
		return roce(skb, &v);
	return crem(skb, &v);
}

SEC("tcx/ingress")
int crem_ingress(struct __sk_buff *skb)
{
	return ingress(skb, false);
}

/* The same for an uplink without Ethernet headers. */
SEC("tcx/ingress")
int crem_bare(struct __sk_buff *skb)
{
	return ingress(skb, true);
}

/* Turns injected frames round into the uplink's receive path, with Ethernet headers or without. */
SEC("tcx/egress")
int crem_egress(struct __sk_buff *skb)
{
	struct turns *t;

	if (skb->mark != mark)
		return TCX_NEXT;
	t = turns();
	if (t)
		__sync_fetch_and_add(&t->redirected, 1);
	count(REDIRECTED);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}
