/* SPDX-License-Identifier: Apache-2.0 */

/* Marks, told to user space. */
#ifndef CREM_WAN_TELL_H
#define CREM_WAN_TELL_H

#include "wan_maps.h"

/* Tells that a flow met congestion, not too often. own: in the queue of this node, where it enters the tunnel; else on the
 * way through the tunnel to here. A flow passes a node in one of the two ways only. */
static __always_inline void tell(struct flow_name *flow, struct ends *ends, __u8 level, __u8 own)
{
	struct told_key key = { .flow = *flow, .level = level };
	__u64 now = bpf_ktime_get_ns(), *last = bpf_map_lookup_elem(&crem_wan_told, &key);
	struct met met = { .flow = *flow, .level = level, .own = own, .ends = *ends };

	if (last && now - READ_ONCE(*last) < tell_ns)
		return;
	bpf_map_update_elem(&crem_wan_told, &key, &now, BPF_ANY);
	if (bpf_ringbuf_output(&crem_wan_marks, &met, sizeof(met), 0))
		count(MARK_UNTOLD);
}

#endif
