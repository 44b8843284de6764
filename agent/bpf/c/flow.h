/* SPDX-License-Identifier: Apache-2.0 */

/* RoCEv2 packets: copied with their verdict if their flow is registered, else noted. Whatever goes wrong, they pass. */
#ifndef CREM_FLOW_H
#define CREM_FLOW_H

#include "link.h"
#include "parse.h"
#include "ring.h"

struct bth {
	__u8 opcode;
	__u8 flags; /* SE, MigReq, pad count, TVer in the lower four bits */
	__be16 pkey;
	__be32 qpn; /* lower 24 bits */
	__be32 psn; /* lower 24 bits */
};
#define BTH_LEN 12
#define RETH_LEN 16
#define RETH_DMA_LEN 12 /* offset in the RETH */
#define XRCETH_LEN 4
#define ICRC_LEN 4

/* Opcodes: transport class in the upper three bits, operation in the lower five. */
#define CLASS(op) ((op) >> 5)
#define OPERATION(op) ((op) & 0x1f)
#define RC 0
#define UC 1
#define XRC 5
#define READ_REQUEST 0x0c
#define READ_RESPONSE_FIRST 0x0d
#define READ_RESPONSE_MIDDLE 0x0e
#define READ_RESPONSE_LAST 0x0f

/* A bit for each operation that takes a PSN in the request space: SEND, WRITE, READ, ATOMIC, SEND with invalidate,
 * FLUSH, ATOMIC WRITE; and in the response space. Class RD, UD and CNP packets are never protected. */
#define REQUESTS_RC 0x30d81fffU
#define REQUESTS_XRC 0x00d81fffU
#define REQUESTS_UC 0x00000fffU
#define RESPONSES 0x0005e000U

enum space { NONE, REQUEST, RESPONSE };

/* As roce.Transport has them. veRoCE has the opcodes of RC for what takes a PSN, MRC only its own WRITEs. */
enum transport { ROCEV2, VEROCE, MRC };
#define MRC_FIRST 0xc6
#define MRC_LAST 0xcb

static __always_inline struct transports *transports(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&crem_transports, &zero);
}

static __always_inline bool is_roce(struct view *v)
{
	struct transports *t;

	if (v->port == ROCE_PORT)
		return true;
	t = transports();
	return t && t->veroce_port && v->port == t->veroce_port;
}

static __always_inline enum transport transport_of(struct view *v, __u8 opcode)
{
	struct transports *t;

	if (v->port != ROCE_PORT)
		return VEROCE;
	if (opcode < MRC_FIRST || opcode > MRC_LAST)
		return ROCEV2;
	t = transports();
	return t && t->mrc ? MRC : ROCEV2;
}

static __always_inline enum space space_of(__u8 opcode)
{
	__u32 class = CLASS(opcode), bit = 1U << OPERATION(opcode);

	if (class == UC)
		return REQUESTS_UC & bit ? REQUEST : NONE;
	if (class != RC && class != XRC)
		return NONE;
	if (RESPONSES & bit)
		return RESPONSE;
	return (class == RC ? REQUESTS_RC : REQUESTS_XRC) & bit ? REQUEST : NONE;
}

static __always_inline enum space space_in(enum transport transport, __u8 opcode)
{
	if (transport == MRC)
		return REQUEST;
	if (transport == VEROCE && CLASS(opcode) != RC)
		return NONE;
	return space_of(opcode);
}

/* A packet that user space can take apart again: lengths that agree, a version that we know. */
static __always_inline bool well_formed(struct __sk_buff *skb, struct view *v, struct bth *b)
{
	__u32 payload = v->udp_len - sizeof(struct udphdr);

	return v->udp_len >= sizeof(struct udphdr) + BTH_LEN + ICRC_LEN && payload % 4 == 0 &&
	       v->l4 + v->udp_len == v->end && v->end <= skb->len && !(b->flags & 0xf);
}

/* How many PSNs the packet takes: more than one only a READ request of RoCEv2. */
static __always_inline __u32 advance(struct __sk_buff *skb, struct view *v, __u8 opcode, __u32 mtu)
{
	__u32 at = sizeof(struct udphdr) + BTH_LEN + (CLASS(opcode) == XRC ? XRCETH_LEN : 0);
	__u64 n;
	__be32 len;

	if (v->port != ROCE_PORT || (CLASS(opcode) != RC && CLASS(opcode) != XRC) || OPERATION(opcode) != READ_REQUEST)
		return 1;
	if (v->udp_len < at + RETH_LEN + ICRC_LEN || !mtu)
		return 1;
	if (bpf_skb_load_bytes(skb, v->l4 + at + RETH_DMA_LEN, &len, sizeof(len)))
		return 1;
	n = ((__u64)bpf_ntohl(len) + mtu - 1) / mtu;
	if (n < 1)
		n = 1;
	return n > PSN_HALF ? PSN_HALF : n;
}

static __always_inline bool behind(__u32 psn, __u32 expected)
{
	return ((psn - expected) & PSN_MASK) >= PSN_HALF;
}

/* Whether the PSNs from expected up to psn that didn't come are losses. In the request space always. In the response
 * space PSNs that were answered by plain ACKs never appear, so only within a message (it began, it didn't end, or it
 * goes on without having begun), or where a request is known to have asked for responses. */
static __always_inline bool is_gap(struct flow *f, enum space space, __u8 opcode, __u32 expected, __u32 psn)
{
	__u64 sure = READ_ONCE(f->sure);
	__u32 from = sure & PSN_MASK, to = sure >> 24 & PSN_MASK, op = OPERATION(opcode);

	if (space == REQUEST || READ_ONCE(f->inside) || op == READ_RESPONSE_MIDDLE || op == READ_RESPONSE_LAST)
		return true;
	/* [expected, psn) meets [from, to). */
	return ((expected - from) & PSN_MASK) < ((to - from) & PSN_MASK) ||
	       (from != to && ((from - expected) & PSN_MASK) < ((psn - expected) & PSN_MASK));
}

static __always_inline void set_inside(struct flow *f, enum space space, __u8 opcode)
{
	__u32 op = OPERATION(opcode);
	__u32 inside = op == READ_RESPONSE_FIRST || op == READ_RESPONSE_MIDDLE;

	if (space == RESPONSE && READ_ONCE(f->inside) != inside)
		f->inside = inside;
}

#define WORD_TRIES 8

/* A packet passes without a copy: keep the expected PSN in step and end HOLD, else every later packet would look like
 * a gap. A packet behind changes nothing. */
static __attribute__((noinline)) int fail_open(struct flow *f, struct ring *r, __u32 psn, __u32 n,
					       enum reason reason)
{
	__sync_fetch_and_add(&f->missed, 1);
	if (r)
		__sync_fetch_and_add(&r->missed, 1);
	UNROLLED
	for (int i = 0; i < WORD_TRIES && f->mode != MODE_IMMEDIATE; i++) {
		__u64 w = READ_ONCE(f->word), next;

		if (!(w & WORD_LEARN) && behind(psn, w & PSN_MASK))
			break;
		next = (w & ~(WORD_HOLD | WORD_LEARN | PSN_MASK)) | ((psn + n) & PSN_MASK);
		if (__sync_val_compare_and_swap(&f->word, w, next) == w)
			break;
	}
	return pass(reason);
}

/* Judges a packet whose copy is in a slot. Returns the slot's flags, or a negative number when others changed the word
 * every time. */
static __always_inline int judge(struct flow *f, enum space space, __u8 opcode, __u32 psn, __u32 n)
{
	UNROLLED
	for (int i = 0; i < WORD_TRIES; i++) {
		__u64 w = READ_ONCE(f->word), next;
		__u32 expected = w & PSN_MASK;
		int flags = 0;

		if (w & WORD_LEARN) {
			flags = SLOT_LEARNED;
		} else if (behind(psn, expected)) {
			return SLOT_BEHIND;
		} else if (w & WORD_HOLD || (psn != expected && is_gap(f, space, opcode, expected, psn))) {
			next = (w & WORD_HOLD ? w : w | WORD_HOLD) + WORD_HELD_ONE;
			/* The count wraps within its 38 bits. */
			next = (next & ((1ULL << 62) - 1)) | WORD_HOLD;
			if (__sync_val_compare_and_swap(&f->word, w, next) == w)
				return SLOT_HELD;
			continue;
		}
		next = (w & ~(WORD_HOLD | WORD_LEARN | PSN_MASK)) | ((psn + n) & PSN_MASK);
		if (__sync_val_compare_and_swap(&f->word, w, next) == w) {
			set_inside(f, space, opcode);
			return flags;
		}
	}
	return -1;
}

static __always_inline void note_seen(struct flow_key *key, __u64 now)
{
	__u64 *last = bpf_map_lookup_elem(&crem_seen, key);

	if (!last)
		bpf_map_update_elem(&crem_seen, key, &now, BPF_ANY);
	else if (now - READ_ONCE(*last) > 1000000)
		*last = now;
}

static __always_inline int registered(struct __sk_buff *skb, struct view *v, struct bth *b, __u32 index, __u64 now)
{
	__u32 psn = bpf_ntohl(b->psn) & PSN_MASK, worker, n;
	__u32 len = ETH_HLEN + skb->len - v->ip; /* of the copy */
	enum space space = v->key.qpn_space & RESPONSE_SPACE ? RESPONSE : REQUEST;
	struct flow *f = bpf_map_lookup_elem(&crem_flows, &index);
	struct ring *r;
	struct slot *s;
	__u64 position = 0;
	int flags;

	if (!f)
		return TCX_NEXT;
	n = advance(skb, v, b->opcode, f->mtu);
	worker = f->worker;
	r = bpf_map_lookup_elem(&crem_rings, &worker);
	if (!r || READ_ONCE(r->bypass))
		return fail_open(f, r, psn, n, OPEN_BYPASS);
	if (stale(r, now))
		return fail_open(f, r, psn, n, OPEN_STALE);
	if (len > slot_octets)
		return fail_open(f, r, psn, n, OPEN_TOO_LONG);
	s = reserve(r, worker, &position);
	if (!s)
		return fail_open(f, r, psn, n, OPEN_RING_FULL);

	s->ktime = now;
	s->len = len;
	s->whole = len;
	s->ifindex = skb->ifindex;
	s->flow = index;
	s->domain = 0;
	if (!copy_packet(skb, s, v, skb->len)) {
		s->flags = SLOT_VOID;
		publish(s, position);
		return fail_open(f, r, psn, n, OPEN_COPY_FAILED);
	}
	/* From here on the packet is surely in the ring, so that the count of held packets may move. */
	flags = f->mode == MODE_IMMEDIATE ? 0 : judge(f, space, b->opcode, psn, n);
	s->flags = flags < 0 ? SLOT_VOID : flags;
	publish(s, position);
	if (flags < 0)
		return fail_open(f, r, psn, n, OPEN_CONTENDED);
	if (flags == SLOT_HELD)
		return drop(HELD);
	if (f->mode == MODE_IMMEDIATE)
		return pass(IMMEDIATE);
	return pass(flags == SLOT_BEHIND ? BEHIND : IN_ORDER);
}

static __always_inline int roce(struct __sk_buff *skb, struct view *v)
{
	struct bth b;
	enum transport transport;
	enum space space;
	__u32 qpn, *index;
	__u64 now;

	if (v->vlan)
		return pass(PASS_VLAN);
	if (v->fragment)
		return pass(PASS_FRAGMENT);
	if (v->options)
		return pass(PASS_OPTIONS);
	if (v->extension)
		return pass(PASS_EXTENSION);
	if (skb->gso_size)
		return pass(PASS_GSO);
	if (bpf_skb_load_bytes(skb, v->l4 + sizeof(struct udphdr), &b, sizeof(b)) || !well_formed(skb, v, &b))
		return pass(PASS_MALFORMED);
	transport = transport_of(v, b.opcode);
	space = space_in(transport, b.opcode);
	qpn = bpf_ntohl(b.qpn) & PSN_MASK;
	if (space == NONE || qpn <= 1) /* queue pairs 0 and 1 are management */
		return TCX_NEXT;
	v->key.qpn_space = qpn | transport << TRANSPORT_SHIFT | (space == RESPONSE ? RESPONSE_SPACE : 0);
	now = bpf_ktime_get_ns();
	index = bpf_map_lookup_elem(&crem_flow_index, &v->key);
	if (index)
		return registered(skb, v, &b, *index, now);
	note_seen(&v->key, now);
	return pass(UNREGISTERED);
}

#endif
