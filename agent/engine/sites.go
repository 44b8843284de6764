// SPDX-License-Identifier: Apache-2.0

package engine

import "crem.dev/crem/internal/agentapi"

// siteKey names a site of a domain.
type siteKey struct{ domain, site string }

// siteSum adds up what the protected flows towards one site measure.
type siteSum struct {
	flows, measured int
	rtt, loss       float64
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

func (m siteSums) merge(from siteSums) {
	for key, b := range from {
		a := m[key]
		m[key] = siteSum{flows: a.flows + b.flows, measured: a.measured + b.measured, rtt: a.rtt + b.rtt, loss: a.loss + b.loss}
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
			out.Protected = sum.flows
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
