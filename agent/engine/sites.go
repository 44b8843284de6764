// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"maps"

	"crem.dev/crem/internal/agentapi"
)

// siteKey names a site of a domain.
type siteKey struct{ domain, site string }

// siteSum adds up what the protected flows towards one site measure.
type siteSum struct {
	flows, measured int
	suspended       int // flows that the circuit breaker leaves to RDMA
	rtt, loss       float64
	expected, lost  uint64 // of all flows that there were: totals never go back
}

// siteSums are the sums of all sites. Their number is that of the configuration's sites, whatever the number of flows is.
type siteSums map[siteKey]siteSum

// add counts one leaving flow that is protected.
func (m siteSums) add(f *sendFlow) {
	if f.verdict.site == nil {
		return
	}
	key := siteKey{f.domain, f.verdict.site.Name}
	sum, s := m[key], f.machine.Stats()
	sum.flows++
	sum.loss += s.Loss
	if s.SRTT > 0 {
		sum.measured++
		sum.rtt += s.SRTT.Seconds()
	}
	m[key] = sum
}

// addSuspended counts a leaving flow whose circuit breaker is open, or has closed it for a while (Section 10, rule 5).
func (m siteSums) addSuspended(f *sendFlow) {
	if f.verdict.site == nil || !f.machine.Impaired() {
		return
	}
	key := siteKey{f.domain, f.verdict.site.Name}
	sum := m[key]
	sum.suspended++
	m[key] = sum
}

// addReports counts what receivers reported of one leaving flow, whatever its state is now.
func (m siteSums) addReports(f *sendFlow) {
	if f.machine == nil || f.verdict.site == nil {
		return
	}
	key := siteKey{f.domain, f.verdict.site.Name}
	sum, s := m[key], f.machine.Stats()
	sum.expected += s.Expected
	sum.lost += s.Lost
	m[key] = sum
}

// keep forgets the sites that a configuration does not have any more.
func (m siteSums) keep(c *Config) {
	known := map[siteKey]bool{}
	for i := range c.Domains {
		for j := range c.Domains[i].Sites {
			known[siteKey{c.Domains[i].Name, c.Domains[i].Sites[j].Name}] = true
		}
	}
	maps.DeleteFunc(m, func(key siteKey, _ siteSum) bool { return !known[key] })
}

func (m siteSums) merge(from siteSums) {
	for key, b := range from {
		a := m[key]
		m[key] = siteSum{
			flows: a.flows + b.flows, measured: a.measured + b.measured, suspended: a.suspended + b.suspended, rtt: a.rtt + b.rtt, loss: a.loss + b.loss,
			expected: a.expected + b.expected, lost: a.lost + b.lost,
		}
	}
}

// describe shows every other site of the configuration, in its order, also those without a flow.
func (m siteSums) describe(c *Config) []agentapi.Site {
	var list []agentapi.Site
	for i := range c.Domains {
		d := &c.Domains[i]
		for j := range d.Sites {
			if d.Sites[j].Name == d.Site {
				continue
			}
			out, sum := agentapi.Site{Domain: d.Name, Name: d.Sites[j].Name}, m[siteKey{d.Name, d.Sites[j].Name}]
			out.Protected, out.Suspended, out.Expected, out.Lost = sum.flows, sum.suspended, sum.expected, sum.lost
			if sum.flows > 0 {
				out.Loss = sum.loss / float64(sum.flows)
			}
			if sum.measured > 0 {
				out.SRTT = sum.rtt / float64(sum.measured)
			}
			list = append(list, out)
		}
	}
	return list
}
