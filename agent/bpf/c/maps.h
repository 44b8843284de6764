/* SPDX-License-Identifier: Apache-2.0 */

/* Maps and constants shared by the programs of every uplink. The sizes marked "set by the loader" depend on the node;
 * their constants in .rodata say the same to the verifier. layout.go mirrors every struct. */
#ifndef CREM_MAPS_H
#define CREM_MAPS_H

#include "kernel.h"

volatile const __u32 mark;        /* of injected frames */
volatile const __u32 workers;     /* rings */
volatile const __u32 ring_slots;  /* slots of one ring, a power of two */
volatile const __u32 slot_octets; /* data of one slot */
volatile const __u64 stale_ns;    /* a worker that didn't beat for so long is gone */

/* Why a packet of interest went where it went; counted per CPU. Order: see reason.go. */
enum reason {
	TURNED,            /* injected frame, on its second pass */
	REDIRECTED,        /* injected frame, on its first pass */
	UNREGISTERED,      /* RoCEv2 source packet of no registered flow */
	IN_ORDER,          /* copied, passed */
	BEHIND,            /* copied, passed: retransmission or duplicate */
	HELD,              /* copied, given up */
	IMMEDIATE,         /* copied, passed: flow without order */
	OPEN_RING_FULL,    /* passed without a copy, and why */
	OPEN_STALE,
	OPEN_BYPASS,
	OPEN_TOO_LONG,
	OPEN_COPY_FAILED,
	OPEN_CONTENDED,
	PASS_VLAN,         /* RoCEv2 that can't be protected, and why */
	PASS_FRAGMENT,
	PASS_OPTIONS,
	PASS_EXTENSION,
	PASS_GSO,
	PASS_MALFORMED,
	BOUNDARY_SOURCE,   /* CREM message from outside the domain, dropped */
	BOUNDARY_FRAGMENT, /* fragment to the CREM port, dropped: CREM messages are never fragmented */
	PATH_TAKEN,        /* CREM message for an endpoint of our site, given to a worker */
	PATH_PASSED,       /* the same with no agent to take it */
	PATH_DROPPED,      /* the same with a full ring */
	REASONS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, __u32);
	__type(value, __u64);
} crem_counts SEC(".maps");

struct flow_key {
	__u8 src[16];
	__u8 dst[16];
	__u32 qpn_space; /* destination queue pair, bits 24 and 25: transport, bit 31: response space */
};
#define RESPONSE_SPACE (1U << 31)
#define TRANSPORT_SHIFT 24

/* Transports beside RoCEv2 that are recognised. */
struct transports {
	__u16 veroce_port; /* UDP destination port, 0: none */
	__u16 mrc;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct transports);
} crem_transports SEC(".maps");

/* Word: bit 63 HOLD | bit 62 LEARN | bits 61..24 packets held so far | bits 23..0 expected PSN.
 * Changed by compare-and-swap only, here and in user space. */
#define WORD_HOLD (1ULL << 63)
#define WORD_LEARN (1ULL << 62)
#define WORD_HELD_ONE (1ULL << 24)
#define PSN_MASK 0xffffffU
#define PSN_HALF 0x800000U

struct flow {
	__u64 word;
	__u64 sure; /* bits 0..23 from, 24..47 to: PSNs that responses will use */
	__u32 worker;
	__u32 mtu; /* RDMA MTU */
	__u32 mode;
	__u32 inside; /* the expected PSN lies within a response message */
	__u64 missed; /* packets that passed without a copy */
	__u64 pad[3];
};
#define MODE_IMMEDIATE 1

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set by the loader */
	__type(key, __u32);
	__type(value, struct flow);
} crem_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set by the loader */
	__type(key, struct flow_key);
	__type(value, __u32); /* index in crem_flows */
} crem_flow_index SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1); /* set by the loader */
	__type(key, struct flow_key);
	__type(value, __u64); /* when the last packet came */
} crem_seen SEC(".maps");

/* One ring a worker: the first half is written here, the second by user space. */
struct ring {
	__u64 prod;
	__u64 missed;
	__u64 pad1[6];
	__u64 cons;
	__u64 beat; /* CLOCK_MONOTONIC */
	__u64 bypass;
	__u64 pad2[5];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set by the loader */
	__type(key, __u32);
	__type(value, struct ring);
} crem_rings SEC(".maps");

/* Injected frames wait in the kernel between their two passes. User space must know when all are through before it lets
 * other packets pass again. */
struct turns {
	__u64 redirected;
	__u64 turned;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct turns);
} crem_turns SEC(".maps");

/* Head of a slot; slot_octets of data follow. seq is position + 1 once the slot is whole. */
struct slot {
	__u64 seq;
	__u64 ktime;
	__u32 len; /* octets of data */
	__u32 flags;
	__u32 ifindex;
	__u32 flow;
	__u32 domain;
	__u32 whole; /* octets of the whole packet */
	__u64 pad[3];
	__u8 data[];
};
#define NO_FLOW 0xffffffffU
#define SLOT_HELD 1
#define SLOT_BEHIND 2
#define SLOT_LEARNED 4
#define SLOT_TAKEN 8
#define SLOT_SEGMENT 16
#define SLOT_VOID 32

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set by the loader: workers * ring_slots */
	__uint(key_size, 4);
	__uint(value_size, sizeof(struct slot)); /* set by the loader */
} crem_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u16); /* UDP port, host order */
	__type(value, __u32); /* domain */
} crem_ports SEC(".maps");

struct prefix {
	__u32 len; /* 32 and the prefix length */
	__u32 domain;
	__u8 addr[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct prefix);
	__type(value, __u32);
} crem_members SEC(".maps"), crem_served SEC(".maps");

struct address {
	__u8 addr[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct address);
	__type(value, __u32);
} crem_local SEC(".maps");

/* A function of its own also puts the enum into the type information, from which stats.go gets its numbers. */
static __attribute__((noinline)) void count(enum reason reason)
{
	__u32 index = reason;
	__u64 *n = bpf_map_lookup_elem(&crem_counts, &index);

	if (n)
		*n += 1;
}

static __always_inline int pass(enum reason reason)
{
	count(reason);
	return TCX_NEXT;
}

static __always_inline int drop(enum reason reason)
{
	count(reason);
	return TC_ACT_SHOT;
}

#endif
