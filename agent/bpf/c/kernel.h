/* SPDX-License-Identifier: Apache-2.0 */

/* What every program needs of the kernel. */
#ifndef CREM_KERNEL_H
#define CREM_KERNEL_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#ifndef TCX_NEXT
#define TCX_NEXT (-1)
#endif
#define TC_ACT_SHOT 2

/* Loops are unrolled: without the capability PERFMON the verifier also follows what a processor may run ahead of a branch,
 * and finds no end in a loop. */
#define UNROLLED _Pragma("clang loop unroll(full)")

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))

#define ROCE_PORT 4791

/* IPv4 addresses are IPv4-mapped everywhere. */
static __always_inline void map_ipv4(__u8 *to, __u32 addr)
{
	__u32 *w = (__u32 *)to;

	w[0] = 0;
	w[1] = 0;
	w[2] = bpf_htonl(0xffff);
	w[3] = addr;
}

#endif
