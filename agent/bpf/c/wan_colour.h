/* SPDX-License-Identifier: Apache-2.0 */

/* Alternate Marking (RFC 9341) of what travels in tunnels: the outer header carries the colour of the period in which it was put on,
 * and both ends count the packets of each flow by period. docs/design/alternate-marking.md says why here and so. */
#ifndef CREM_WAN_COLOUR_H
#define CREM_WAN_COLOUR_H

#include "wan_head.h"

volatile const __u64 period_ns;
volatile __s64 tai_ns; /* CLOCK_TAI minus Unix time; user space keeps it right */

#define DSCP 0xfc
#define COLOUR 0x04 /* the lowest bit of the DSCP: 0 in every codepoint of CS, AF and EF */

struct counted_flow {
	struct flow_name flow;
	__u32 tunnel;
};

struct period_counts {
	__u32 number; /* period */
	__u32 packets;
	__s64 sum; /* of their times after its start, ns */
};
#define KEPT 4 /* periods; agent/reporter has the same number */

struct flow_counts {
	struct bpf_spin_lock lock; /* a flow may come on several cores */
	__u32 since;               /* period of the first packet */
	__u32 recoloured;          /* newest period with a packet whose DSCP was changed on its way; 0: none */
	__u32 pad;
	struct period_counts periods[KEPT];
};

/* What went into tunnels and what came out of them. Nothing gives way to another flow by itself: user space forgets flows that ended,
 * and one for which there is no room is not measured. Memory is taken as flows come. */
#define COUNTED_FLOWS 2048
struct counts_map {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, COUNTED_FLOWS);
	__type(key, struct counted_flow);
	__type(value, struct flow_counts);
};
struct counts_map crem_wan_entered SEC(".maps"), crem_wan_arrived SEC(".maps");

/* When a packet passes. */
struct moment {
	__u64 unix_ns;
	__u32 period;
};

static __always_inline struct moment moment(void)
{
	struct moment m = { .unix_ns = bpf_ktime_get_tai_ns() - tai_ns };

	m.period = m.unix_ns / period_ns;
	return m;
}

static __always_inline struct flow_counts *counts_of(void *map, struct head *h, __u32 tunnel, struct moment *m)
{
	struct counted_flow key = { .flow = h->flow, .tunnel = tunnel };
	struct flow_counts none = { .since = m->period }, *f = bpf_map_lookup_elem(map, &key);

	if (f)
		return f;
	bpf_map_update_elem(map, &key, &none, BPF_NOEXIST);
	f = bpf_map_lookup_elem(map, &key);
	if (!f)
		count(UNCOUNTED);
	return f;
}

/* Adds a packet to a period, which is the present one or one beside it. */
static __always_inline void add_packet(struct flow_counts *f, struct moment *m, __u32 period)
{
	struct period_counts *p = &f->periods[period % KEPT];
	__s64 since = m->unix_ns % period_ns + (__s64)(__s32)(m->period - period) * (__s64)period_ns;

	bpf_spin_lock(&f->lock);
	if (p->number != period) {
		p->number = period;
		p->packets = 0;
		p->sum = 0;
	}
	p->packets += 1;
	p->sum += since;
	bpf_spin_unlock(&f->lock);
}

/* Whether both ends count a packet: a request names no queue pair, and one whose own DSCP has the bit carries no colour. */
static __always_inline bool measurable(struct head *h)
{
	if (!h->flow.qpn)
		return false;
	if (h->class & COLOUR)
		count(COLOURLESS);
	return !(h->class & COLOUR);
}

/* The nearest period of a packet's colour: agent/reporter, Periods.Of. */
static __always_inline __u32 period_of(struct moment *m, bool colour)
{
	if ((m->period & 1) == colour)
		return m->period;
	return m->unix_ns % period_ns < period_ns / 2 ? m->period - 1 : m->period + 1;
}

/* Counts a packet that came with this octet of DSCP and ECN outside. */
static __always_inline void count_arrival(struct head *h, __u8 outer, __u32 tunnel)
{
	struct moment m = moment();
	struct flow_counts *f;

	if (!measurable(h))
		return;
	f = counts_of(&crem_wan_arrived, h, tunnel, &m);
	if (!f)
		return;
	if ((h->class ^ outer) & DSCP & ~COLOUR) {
		f->recoloured = m.period;
		count(RECOLOURED);
		return;
	}
	add_packet(f, &m, period_of(&m, outer & COLOUR));
}

#endif
