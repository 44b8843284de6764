// SPDX-License-Identifier: Apache-2.0

package wire

import "testing"

// TestSection4_NeededMTU: the numbers by hand. A WRITE ONLY with immediate data is the largest packet: BTH 12, RETH 16, immediate
// data 4, data, invariant CRC 4; with the length prefix 2 and rounded up to 4 it is the symbol. A REPAIR of a block of 32 has 8 octets
// of header, 12 of fields, two bitmaps of 4 and a digest of 8 before it.
func TestSection4_NeededMTU(t *testing.T) {
	for _, tc := range []struct {
		mtu, k int
		ipv6   bool
		want   int
	}{
		{1024, 32, false, 20 + 8 + 8 + 12 + 4 + 4 + 8 + 1064},
		{1024, 32, true, 40 + 8 + 8 + 12 + 4 + 4 + 8 + 1064},
		{4096, 32, false, 4200},
		{4096, 33, false, 4208}, // two words more
		{4096, 254, false, 4256},
		{4096, 16, true, 4220},
	} {
		if got := NeededMTU(tc.mtu, tc.k, tc.ipv6); got != tc.want {
			t.Errorf("RDMA MTU %d, k %d, IPv6 %v: %d, want %d", tc.mtu, tc.k, tc.ipv6, got, tc.want)
		}
	}
}
