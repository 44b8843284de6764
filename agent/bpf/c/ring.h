/* SPDX-License-Identifier: Apache-2.0 */

/* The rings to user space. Any CPU may write to any ring: a slot is reserved by compare-and-swap on prod and becomes
 * visible by its own sequence number, so a slow writer delays later slots for the moment and never mixes with them.
 * A reserved slot is always published. */
#ifndef CREM_RING_H
#define CREM_RING_H

#include "maps.h"

#define RESERVE_TRIES 8

/* Signed: the beat may be a moment younger than now. */
static __always_inline bool stale(struct ring *r, __u64 now)
{
	return (__s64)(now - READ_ONCE(r->beat)) > (__s64)stale_ns;
}

static __always_inline struct slot *reserve(struct ring *r, __u32 worker, __u64 *position)
{
	UNROLLED
	for (int i = 0; i < RESERVE_TRIES; i++) {
		__u64 prod = READ_ONCE(r->prod);
		__u32 index;

		/* Signed: cons may have passed the prod just read. */
		if ((__s64)(prod - READ_ONCE(r->cons)) >= (__s64)ring_slots)
			return 0;
		if (__sync_val_compare_and_swap(&r->prod, prod, prod + 1) != prod)
			continue;
		*position = prod;
		index = worker * ring_slots + (prod & (ring_slots - 1));
		return bpf_map_lookup_elem(&crem_slots, &index);
	}
	return 0;
}

static __always_inline void publish(struct slot *s, __u64 position)
{
	/* An exchange is a full barrier: the slot is whole before its number is. */
	__sync_lock_test_and_set(&s->seq, position + 1);
}

#define MOST_HEAD 64

/* Copies len octets at offset off to the slot's data at offset at. The verifier knows slot_octets as a constant, but not
 * that at and len together stay within it: a slot has MOST_HEAD octets to spare. The barriers keep the compiler from
 * merging the tests. */
static __always_inline bool copy(struct __sk_buff *skb, struct slot *s, __u64 at, __u32 off, __u64 len)
{
	asm volatile("" : "+r"(len));
	asm volatile("" : "+r"(at));
	if (at > MOST_HEAD || len < 1 || len > slot_octets - at)
		return false;
	return !bpf_skb_load_bytes(skb, off, s->data + at, len);
}

#endif
