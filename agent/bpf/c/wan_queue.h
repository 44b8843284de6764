/* SPDX-License-Identifier: Apache-2.0 */

/* The node as marking node: the outer header tells how long the queue of the own uplink is. User space measures it, and says
 * with which chances packets are marked (agent/ecn, marker.go). */
#ifndef CREM_WAN_QUEUE_H
#define CREM_WAN_QUEUE_H

#include "wan_head.h"
#include "wan_tell.h"

/* Of the packets that go into a tunnel, in 2^-32. They hold until a time: an agent that is gone marks nothing. */
struct chances {
	__u64 until; /* CLOCK_MONOTONIC */
	__u64 marked; /* with either mark */
	__u64 severe; /* with CE; never more than marked */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MOST_TUNNELS);
	__type(key, __u32); /* as in crem_wan_tunnels */
	__type(value, struct chances);
} crem_wan_chances SEC(".maps");

/* The outer codepoint of a packet. One draw decides both marks; what can not be marked, or is CE already, stays as it is. */
static __always_inline __u8 mark_by_queue(struct flow_name *flow, __u32 tunnel, struct tunnel *t, __u8 codepoint, __u64 now)
{
	struct chances *c = bpf_map_lookup_elem(&crem_wan_chances, &tunnel);
	struct ends ends;
	__u64 draw;
	__u8 level;

	if (!c || now >= READ_ONCE(c->until) || codepoint == NOT_ECT || codepoint == CE)
		return codepoint;
	draw = bpf_get_prandom_u32();
	if (draw >= READ_ONCE(c->marked))
		return codepoint;
	level = draw < READ_ONCE(c->severe) ? LEVEL_SEVERE : LEVEL_EARLY;
	__builtin_memcpy(ends.local, t->local, sizeof(ends.local));
	__builtin_memcpy(ends.remote, t->remote, sizeof(ends.remote));
	tell(flow, &ends, level, true);
	count(level == LEVEL_SEVERE ? QUEUE_SEVERE : QUEUE_EARLY);
	return level == LEVEL_SEVERE ? CE : ECT1;
}

#endif
