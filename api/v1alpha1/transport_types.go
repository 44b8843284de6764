// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Transports says which transports beside RoCEv2 a domain protects (Section 4.4 of the protocol), and what is not settled in public about them.
type Transports struct {
	// veroce has the flows of veRoCE protected. Absent: its packets pass as they are.
	// +optional
	VeRoCE *VeRoCE `json:"veroce,omitempty"`

	// mrc has the flows of MRC protected, the Multipath Reliable Connection. Absent: its packets pass as they are.
	// +optional
	MRC *MRC `json:"mrc,omitempty"`
}

// VeRoCE is how packets of veRoCE are read. An empty object takes what public descriptions say.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.sackOpcode) && has(self.responseACKOpcode) && self.sackOpcode == self.responseACKOpcode || has(self.sackOpcode) && has(self.responseSACKOpcode) && self.sackOpcode == self.responseSACKOpcode || has(self.responseACKOpcode) && has(self.responseSACKOpcode) && self.responseACKOpcode == self.responseSACKOpcode)",message="has one opcode for two kinds of acknowledgement: write each opcode once"
type VeRoCE struct {
	// port is the UDP destination port of veRoCE. Absent: 4794.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:validation:XValidation:rule="self != 4791",message="is the port of RoCEv2: write that of veRoCE, for instance 4794"
	Port *int32 `json:"port,omitempty"`

	// retransmissionBit is the bit of octet 8 of the BTH that is set in retransmissions, 0 the least significant. Absent: not known;
	// retransmissions are told by the history of PSNs alone.
	// +optional
	RetransmissionBit *RetransmissionBit `json:"retransmissionBit,omitempty"`

	// sackOpcode is the opcode of selective acknowledgements of requests. Absent: not known; such packets are not read, so blocks are
	// kept longer than needed.
	// +optional
	SACKOpcode *AcknowledgementOpcode `json:"sackOpcode,omitempty"`

	// responseACKOpcode is the opcode of acknowledgements of responses. Absent: not known, as above.
	// +optional
	ResponseACKOpcode *AcknowledgementOpcode `json:"responseACKOpcode,omitempty"`

	// responseSACKOpcode is the opcode of selective acknowledgements of responses. Absent: not known, as above.
	// +optional
	ResponseSACKOpcode *AcknowledgementOpcode `json:"responseSACKOpcode,omitempty"`
}

// MRC is how packets of MRC are read. An empty object takes what public descriptions say.
type MRC struct {
	// retransmissionBit is the bit of octet 8 of the BTH that is set in retransmissions, 0 the least significant. Absent: not known;
	// retransmissions are told by the history of PSNs alone.
	// +optional
	RetransmissionBit *RetransmissionBit `json:"retransmissionBit,omitempty"`
}

// RetransmissionBit is one of the seven bits of octet 8 of the BTH that RoCEv2 leaves zero.
//
// +kubebuilder:validation:Minimum=0
// +kubebuilder:validation:Maximum=6
type RetransmissionBit int32

// AcknowledgementOpcode is octet 0 of the BTH of an acknowledgement that RoCEv2 does not have.
//
// +kubebuilder:validation:Minimum=24
// +kubebuilder:validation:Maximum=255
// +kubebuilder:validation:XValidation:rule="!(self in [28, 29, 129])",message="is taken by RoCEv2, or is no opcode: write one from 24 to 255 other than 28 and 29 (FLUSH and ATOMIC WRITE) and 129 (CNP)"
type AcknowledgementOpcode int32
