/* SPDX-License-Identifier: Apache-2.0 */

/* CREM messages that arrive at an uplink: those from outside the domain are dropped, agent or not; those for an endpoint
 * of our own site are taken by a worker, so that its receiver function can answer on the path. */
#ifndef CREM_BOUNDARY_H
#define CREM_BOUNDARY_H

#include "link.h"
#include "parse.h"
#include "ring.h"

#define TYPE_REPAIR 1
#define MOST_SEGMENTS 128 /* the kernel's bound for one UDP super-packet */

static __always_inline bool within(void *trie, __u32 domain, __u8 *addr)
{
	struct prefix p = { .len = 32 + 128, .domain = domain };

	__builtin_memcpy(p.addr, addr, 16);
	return bpf_map_lookup_elem(trie, &p);
}

struct taking {
	struct __sk_buff *skb;
	struct view *view;
	struct ring *ring;
	__u32 worker;
	__u32 domain;
	__u32 head;    /* octets before the UDP payload */
	__u32 end;     /* offset after the UDP payload */
	__u32 segment; /* octets of payload of one message */
	__u64 now;
};

/* Gives message number i of the packet to the ring. Returns 0 to go on with the next one. */
static long take(__u32 i, struct taking *t)
{
	struct __sk_buff *skb = t->skb;
	__u32 off = t->head + i * t->segment, len = t->segment;
	__u32 head = ETH_HLEN + t->head - t->view->ip; /* in the slot */
	struct slot *s;
	__u64 position = 0;

	if (off >= t->end)
		return 1;
	if (len > t->end - off)
		len = t->end - off;
	s = reserve(t->ring, t->worker, &position);
	if (!s) {
		count(PATH_DROPPED);
		return 1;
	}
	s->ktime = t->now;
	s->len = head + len;
	s->whole = s->len;
	s->flags = SLOT_TAKEN | (t->segment < t->end - t->head ? SLOT_SEGMENT : 0);
	s->ifindex = skb->ifindex;
	s->flow = NO_FLOW;
	s->domain = t->domain;
	if (copy_packet(skb, s, t->view, t->head) && copy(skb, s, head, off, len)) {
		count(PATH_TAKEN);
	} else {
		s->flags = SLOT_VOID;
		count(PATH_DROPPED);
	}
	publish(s, position);
	return 0;
}

static __always_inline int take_all(struct __sk_buff *skb, struct view *v, __u32 domain)
{
	struct {
		__u8 version_type;
		__u8 flags;
		__be16 len;
		__be32 flow;
	} head;
	struct taking t = { .skb = skb, .view = v, .domain = domain, .head = v->l4 + sizeof(struct udphdr) };

	if (v->options || v->extension || bpf_skb_load_bytes(skb, t.head, &head, sizeof(head)))
		return pass(PATH_PASSED);
	/* The worker that the socket would choose for it. */
	if ((head.version_type & 0xf) == TYPE_REPAIR)
		t.worker = bpf_ntohl(head.flow) % workers;
	t.ring = bpf_map_lookup_elem(&crem_rings, &t.worker);
	t.now = bpf_ktime_get_ns();
	if (!t.ring || READ_ONCE(t.ring->bypass) || stale(t.ring, t.now))
		return pass(PATH_PASSED);
	/* A frame may be padded; a super-packet is cut here. */
	t.end = v->l4 + v->udp_len;
	if (t.end > skb->len)
		t.end = skb->len;
	t.segment = skb->gso_size ? skb->gso_size : skb->len;
	bpf_loop(MOST_SEGMENTS, take, &t, 0);
	return TC_ACT_SHOT;
}

static __always_inline int crem(struct __sk_buff *skb, struct view *v)
{
	__u32 *domain = bpf_map_lookup_elem(&crem_ports, &v->port), id;

	if (!domain || v->vlan)
		return TCX_NEXT;
	id = *domain;
	if (v->fragment)
		return drop(BOUNDARY_FRAGMENT);
	if (!within(&crem_members, id, v->key.src))
		return drop(BOUNDARY_SOURCE);
	if (within(&crem_served, id, v->key.dst) && !bpf_map_lookup_elem(&crem_local, &v->key.dst))
		return take_all(skb, v, id);
	return TCX_NEXT;
}

#endif
