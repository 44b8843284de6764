/* SPDX-License-Identifier: Apache-2.0 */

/* Maps of the tunnels between sites. tunnels.go mirrors every struct. */
#ifndef CREM_WAN_MAPS_H
#define CREM_WAN_MAPS_H

#include "kernel.h"

volatile const __u32 mark;    /* of injected frames: they are no packets of the wire */
volatile const __u64 tell_ns; /* a flow's marks of one level are told at most that often */

/* What became of a packet of interest; counted per CPU. Order: see passage.go. Those that begin with PLAIN left as they were. */
enum passage {
	ENCAPSULATED,
	OVER_RATE,         /* encapsulated, and marked CE: over the rate that congestion left its flow */
	OVER_RATE_NOT_ECT, /* encapsulated: the same, but the packet can not be told */
	PLAIN_NO_LEASE,    /* the other end has not said lately that it takes tunnelled packets */
	PLAIN_UPLINK,      /* leaves by another uplink than the last request did */
	PLAIN_TOO_BIG,     /* does not fit the tunnel, or an earlier packet of its flow did not */
	PLAIN_REFUSED,     /* the kernel would not make room */
	PLAIN_SUPER,       /* a super-packet: segmentation offload is on, and the device will cut it */
	DECAPSULATED,
	LIGHT,           /* decapsulated, an early warning was consumed */
	IN_MALFORMED,    /* dropped, and so are all below: lengths or fields that contradict each other */
	IN_CHECKSUM,     /* of the outer IPv4 header */
	IN_FRAGMENT,     /* an outer fragment: nothing of ours fragments */
	IN_FOREIGN,      /* the inner packet is not from the other site to the own one */
	IN_NOT_ECT,      /* congestion was met, and the inner packet can not say so */
	IN_REFUSED,      /* the kernel would not take the outer header off */
	MARK_UNTOLD,     /* a mark that was not told: no room */
	QUEUE_EARLY,     /* encapsulated too, with the early warning: the own queue is long */
	QUEUE_SEVERE,    /* the same with CE */
	COLOURLESS,      /* in a tunnel that is measured, not counted: its DSCP has the bit of the colour itself */
	UNCOUNTED,       /* the same: no room for its flow */
	RECOLOURED,      /* the same: its DSCP was changed on its way */
	PASSAGES,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PASSAGES);
	__type(key, __u32);
	__type(value, __u64);
} crem_wan_counts SEC(".maps");

/* Packets that arrived in tunnels, by inner (upper two bits) and outer ECN field. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} crem_wan_cells SEC(".maps");

/* One direction of a tunnel: what leaves here. User space fills in an entry that nothing names yet; later it changes until
 * only. */
struct tunnel {
	__u64 until;   /* CLOCK_MONOTONIC: nothing is encapsulated from then on */
	__u64 hop;     /* MAC address by which the last request left, */
	__u64 ifindex; /* and its uplink */
	__u64 asked;   /* when that was: an answer to a request that left beside the tunnel proves nothing */
	__u32 mtu;     /* octets of the largest outer packet */
	__u16 mode;
	__u16 port; /* CREM port of the domain */
	__u8 local[16];
	__u8 remote[16];
};
#define MODE_COMPATIBILITY 1
#define MOST_TUNNELS 256
#define NO_TUNNEL 0xffffffffU

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MOST_TUNNELS);
	__type(key, __u32);
	__type(value, struct tunnel);
} crem_wan_tunnels SEC(".maps");

struct ends {
	__u8 local[16];
	__u8 remote[16];
};

struct end {
	__u32 site;
	__u32 tunnel;
	__u32 measured;
};

/* Pairs of gateways between which tunnelled packets are taken. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct ends);
	__type(value, struct end);
} crem_wan_ends SEC(".maps");

struct netmask {
	__u32 len;
	__u8 addr[16];
};

/* Whose endpoints a prefix has, and the tunnel that leads there. */
struct place {
	__u32 site;
	__u32 tunnel;
	__u16 veroce_port; /* UDP destination port of veRoCE, 0: what goes there travels in no tunnel */
	__u16 measured;
};
#define OWN_SITE 0

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 8192);
	__type(key, struct netmask);
	__type(value, struct place);
} crem_wan_places SEC(".maps");

struct flow_name {
	__u8 src[16];
	__u8 dst[16];
	__u32 qpn;
};

/* Flows of which a packet did not fit, and when. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct flow_name);
	__type(value, __u64);
} crem_wan_wide SEC(".maps");
#define WIDE_NS 60000000000ULL

/* What congestion leaves a flow: a virtual schedule of its packets at that rate. */
struct limit {
	__u64 next;        /* when the next packet is due */
	__u64 burst_ns;    /* how much earlier it may come */
	__u64 until;       /* the limit is in force before that time only */
	__u64 ns_per_kib;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct flow_name);
	__type(value, struct limit);
} crem_wan_limits SEC(".maps");

/* A mark, told to user space. */
struct met {
	struct flow_name flow;
	__u8 level;
	__u8 own; /* marked here, by the queue; local is then where the packet enters */
	__u8 pad[2];
	struct ends ends; /* local here, remote where the packet entered the tunnel */
};
#define LEVEL_EARLY 1
#define LEVEL_SEVERE 2

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} crem_wan_marks SEC(".maps");

/* Until when other sites may send into tunnels to this node: the programs stay attached so long. They do not read it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64); /* CLOCK_MONOTONIC */
} crem_wan_promise SEC(".maps");

struct told_key {
	struct flow_name flow;
	__u32 level;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct told_key);
	__type(value, __u64);
} crem_wan_told SEC(".maps");

static __attribute__((noinline)) void count(enum passage passage)
{
	__u32 index = passage;
	__u64 *n = bpf_map_lookup_elem(&crem_wan_counts, &index);

	if (n)
		*n += 1;
}

static __always_inline int pass(enum passage passage)
{
	count(passage);
	return TCX_NEXT;
}

static __always_inline int drop(enum passage passage)
{
	count(passage);
	return TC_ACT_SHOT;
}

#endif
