// SPDX-License-Identifier: Apache-2.0

// Package ipsec says whether the kernel's XFRM policies protect a domain: the CREM messages between gateways and the flows between
// sites. It looks at policies, never at states, so that an exchange of keys changes nothing, and it only looks: somebody else, an IKE
// daemon or a network plugin, sets policies. The decision is a pure function of policies and facts; docs/design/cluster-agent.md has its
// reasons.
package ipsec
