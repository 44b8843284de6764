// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"

	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
)

// Which transports a node recognises is a matter of all its domains: a packet has to be read before it is known whose it is. Whether a flow is
// protected is a matter of its own domain.

// transports are those that any domain protects, each as the first one that names it says. A port of CREM messages is none of veRoCE: the boundary of its
// domain must see them.
func (c *Config) transports() roce.Transports {
	var t roce.Transports
	for i := range c.Domains {
		d := &c.Domains[i].Transports
		if d.VeRoCE.Enabled && !t.VeRoCE.Enabled && !c.isPort(d.VeRoCE.Port) {
			t.VeRoCE = d.VeRoCE
		}
		if d.MRC.Enabled && !t.MRC.Enabled {
			t.MRC = d.MRC
		}
	}
	return t
}

// until gives what the kernel must recognise until all workers obey the configuration: what the one before it had, on the port that it had. If the kernel let
// go of a transport first, packets would pass it that a worker restores a moment later.
func (c *Config) until(before *roce.Transports) roce.Transports {
	t := c.transports()
	if before == nil {
		return t
	}
	if v := before.VeRoCE; v.Enabled && !c.isPort(v.Port) {
		t.VeRoCE = v
	}
	if before.MRC.Enabled {
		t.MRC = before.MRC
	}
	return t
}

// isPort reports whether a UDP port is the CREM port of a domain.
func (c *Config) isPort(port uint16) bool {
	return slices.ContainsFunc(c.Domains, func(d Domain) bool { return d.Port == port })
}

// protects reports whether a domain of the node protects a transport as the node reads it.
func (c *Config) protects(d *Domain, t roce.Transport) bool {
	switch t {
	case roce.VeRoCE:
		return d.Transports.VeRoCE.Enabled && d.Transports.VeRoCE == c.transports().VeRoCE
	case roce.MRC:
		return d.Transports.MRC.Enabled && d.Transports.MRC == c.transports().MRC
	default:
		return true
	}
}

// whyNot says in a sentence why the domain doesn't protect a transport.
func (d *Domain) whyNot(t roce.Transport) string {
	return fmt.Sprintf("domain %s does not protect %v, or reads it otherwise than the node does: see spec.transports", d.Name, t)
}

// recognised is what the kernel must know of them.
func recognised(t *roce.Transports) packet.Recognised {
	r := packet.Recognised{MRC: t.MRC.Enabled}
	if v := &t.VeRoCE; v.Enabled {
		r.VeRoCEPort = v.Port
		r.VeRoCEAnswers = [4]uint8{uint8(roce.Acknowledge), uint8(v.SACK), uint8(v.ResponseACK), uint8(v.ResponseSACK)}
	}
	return r
}
