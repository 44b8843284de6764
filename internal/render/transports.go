// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"reflect"

	"crem.dev/crem/api/v1alpha1"
)

// portVeRoCE is the UDP port of veRoCE where a domain names none.
const portVeRoCE = 4794

// transports resolves what a domain says of transports beside RoCEv2; nil if nothing.
func transports(d *v1alpha1.CREMDomain) *v1alpha1.Transports {
	t := d.Spec.Transports
	if t == nil || t.VeRoCE == nil && t.MRC == nil {
		return nil
	}
	t = t.DeepCopy()
	if t.VeRoCE != nil && t.VeRoCE.Port == nil {
		port := int32(portVeRoCE)
		t.VeRoCE.Port = &port
	}
	return t
}

// transportConflict says why a domain can not share a node with an older one because of transports. A packet is read before it is known
// whose it is, so there is one way to read those of a transport.
func transportConflict(old, d *v1alpha1.CREMDomain, node string) (reason, message string) {
	a, b := transports(old), transports(d)
	if isPortOfVeRoCE(a, d.Spec.Port) || isPortOfVeRoCE(b, old.Spec.Port) {
		return v1alpha1.ReasonPortConflict, fmt.Sprintf("on node %s one domain takes as its port what the other takes as that of veRoCE: write another spec.port than the older domain %s's spec.transports.veroce.port, or choose other nodes", node, old.Name)
	}
	if a == nil || b == nil {
		return "", ""
	}
	var differ string
	switch {
	case a.VeRoCE != nil && b.VeRoCE != nil && !reflect.DeepEqual(a.VeRoCE, b.VeRoCE):
		differ = "veroce"
	case a.MRC != nil && b.MRC != nil && !reflect.DeepEqual(a.MRC, b.MRC):
		differ = "mrc"
	default:
		return "", ""
	}
	return v1alpha1.ReasonTransportConflict, fmt.Sprintf("spec.transports.%s differs on node %s from that of the older domain %s: packets are read in one way only, write the same in both", differ, node, old.Name)
}

func isPortOfVeRoCE(t *v1alpha1.Transports, port int32) bool {
	return t != nil && t.VeRoCE != nil && *t.VeRoCE.Port == port
}

// transports checks spec.transports.
func (v *validator) transports(s *v1alpha1.CREMDomainSpec) {
	if s.Transports == nil {
		return
	}
	if m := s.Transports.MRC; m != nil {
		v.retransmissionBit("spec.transports.mrc", m.RetransmissionBit)
	}
	t := s.Transports.VeRoCE
	if t == nil {
		return
	}
	const at = "spec.transports.veroce"
	port := int32(portVeRoCE)
	if t.Port != nil {
		port = *t.Port
	}
	switch {
	case port < 1 || port > 65535:
		v.fault(at+".port", port, "is no UDP port: write that of veRoCE, for instance 4794")
	case port == portRoCEv2:
		v.fault(at+".port", port, "is the port of RoCEv2: write that of veRoCE, for instance 4794")
	case port == s.Port:
		v.fault("spec.port", s.Port, "is the port of veRoCE, too: write a free port from 49152 to 65535")
	}
	v.retransmissionBit(at, t.RetransmissionBit)
	seen := map[v1alpha1.AcknowledgementOpcode]bool{}
	for _, field := range []struct {
		name   string
		opcode *v1alpha1.AcknowledgementOpcode
	}{{"sackOpcode", t.SACKOpcode}, {"responseACKOpcode", t.ResponseACKOpcode}, {"responseSACKOpcode", t.ResponseSACKOpcode}} {
		if field.opcode == nil {
			continue
		}
		if o := *field.opcode; o < 24 || o > 255 || o == 28 || o == 29 || o == 129 { // those below 24 are of RC, which veRoCE shares
			v.fault(at+"."+field.name, int32(o), "is taken by RoCEv2, or is no opcode: write one from 24 to 255 other than 28 and 29 (FLUSH and ATOMIC WRITE) and 129 (CNP)")
		}
		if seen[*field.opcode] {
			v.fault(at, nil, "has one opcode for two kinds of acknowledgement: write each opcode once")
		}
		seen[*field.opcode] = true
	}
}

func (v *validator) retransmissionBit(at string, bit *v1alpha1.RetransmissionBit) {
	if bit != nil {
		v.between(at+".retransmissionBit", int32(*bit), 0, 6) // bit 7 asks for an acknowledgement
	}
}
