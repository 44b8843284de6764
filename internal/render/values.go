// SPDX-License-Identifier: Apache-2.0

package render

import (
	"net/netip"
	"strconv"
	"strings"

	"crem.dev/crem/api/v1alpha1"
)

// Decimal reads a decimal string of the API (no floating point there), for instance "1e-4" or "0.25".
func Decimal(s string) (float64, bool) {
	if len(s) > 20 || !decimal.MatchString(s) {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil
}

// BitRate reads bits per second with or without one of the suffixes k, M, G and T (powers of 1000).
func BitRate(s string) (int64, bool) {
	if !bitRate.MatchString(s) {
		return 0, false
	}
	return scaled(s, map[string]int64{"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12})
}

// Octets reads a size with or without one of the suffixes Ki, Mi and Gi (powers of 1024).
func Octets(s string) (int64, bool) {
	if !octets.MatchString(s) {
		return 0, false
	}
	return scaled(s, map[string]int64{"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30})
}

// scaled multiplies the number in s by its suffix. What overflows is cut to the largest number, which every bound refuses.
func scaled(s string, suffixes map[string]int64) (int64, bool) {
	digits := strings.TrimRight(s, "kKiMGT")
	factor := int64(1)
	if f, ok := suffixes[s[len(digits):]]; ok {
		factor = f
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, false
	}
	const most = 1<<63 - 1
	if n > most/factor {
		return most, true
	}
	return n * factor, true
}

// parseCIDR reads a prefix. IPv4-mapped prefixes are none (see v1alpha1.CIDR).
func parseCIDR(c v1alpha1.CIDR) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(string(c))
	if err != nil || p.Addr().Is4In6() || len(c) > 43 {
		return netip.Prefix{}, false
	}
	return p, true
}

// overlap finds a prefix of each list that share an address.
func overlap(a, b []v1alpha1.CIDR) (x, y v1alpha1.CIDR, found bool) {
	for _, x := range a {
		p, ok := parseCIDR(x)
		if !ok {
			continue
		}
		for _, y := range b {
			if q, ok := parseCIDR(y); ok && p.Overlaps(q) {
				return x, y, true
			}
		}
	}
	return "", "", false
}

func findSite(sites []v1alpha1.Site, name v1alpha1.SiteName) *v1alpha1.Site {
	for i := range sites {
		if sites[i].Name == name {
			return &sites[i]
		}
	}
	return nil
}

// SiteName says whether a name is one that a site can have.
func SiteName(s string) bool { return len(s) <= 63 && siteName.MatchString(s) }
