// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/api/v1alpha1"
)

// convertTransports converts what a domain says of transports beside RoCEv2, whole or not at all: an acknowledgement that is taken for something
// else frees blocks that are still needed.
func convertTransports(t *v1alpha1.Transports) (roce.Transports, error) {
	var out roce.Transports
	if t == nil {
		return out, nil
	}
	if m := t.MRC; m != nil {
		flag, err := flagOf(m.RetransmissionBit)
		if err != nil {
			return roce.Transports{}, fmt.Errorf("mrc: %w", err)
		}
		out.MRC = roce.MRCSettings{Enabled: true, Retransmission: flag}
	}
	if v := t.VeRoCE; v != nil {
		settings, err := convertVeRoCE(v)
		if err != nil {
			return roce.Transports{}, fmt.Errorf("veroce: %w", err)
		}
		out.VeRoCE = settings
	}
	return out, nil
}

func convertVeRoCE(v *v1alpha1.VeRoCE) (roce.VeRoCESettings, error) {
	out := roce.VeRoCESettings{Enabled: true, Port: roce.VeRoCEPort}
	if v.Port != nil {
		if *v.Port < 1 || *v.Port > 65535 || *v.Port == int32(roce.Port) {
			return out, fmt.Errorf("port %d can not be that of veRoCE", *v.Port)
		}
		out.Port = uint16(*v.Port)
	}
	var err error
	if out.Retransmission, err = flagOf(v.RetransmissionBit); err != nil {
		return out, err
	}
	for _, one := range []struct {
		from *v1alpha1.AcknowledgementOpcode
		to   *roce.Opcode
	}{{v.SACKOpcode, &out.SACK}, {v.ResponseACKOpcode, &out.ResponseACK}, {v.ResponseSACKOpcode, &out.ResponseSACK}} {
		if one.from == nil {
			continue
		}
		if *one.from < 1 || *one.from > 255 {
			return out, fmt.Errorf("%d is no opcode", *one.from)
		}
		*one.to = roce.Opcode(*one.from)
		if _, source := roce.VeRoCE.Space(*one.to); source || *one.to == roce.Acknowledge || *one.to == roce.CNP {
			return out, fmt.Errorf("opcode %d is %v", *one.from, *one.to)
		}
	}
	return out, nil
}

// flagOf makes a mask of a bit's number; 0 for none.
func flagOf(bit *v1alpha1.RetransmissionBit) (uint8, error) {
	if bit == nil {
		return 0, nil
	}
	if *bit < 0 || *bit > 6 {
		return 0, fmt.Errorf("retransmissionBit %d is not from 0 to 6", *bit)
	}
	return 1 << *bit, nil
}
