// SPDX-License-Identifier: Apache-2.0

// Package controllers is the operator of CREM: it renders CREMDomain and CREMProfile objects onto nodes as CREMNode objects, tells agents the
// addresses of pods in CREMEndpointSlice objects, and reports back in the statuses of domains and profiles. It is not on the data path: while
// it is away nothing changes for traffic.
//
// Every decision is a pure function of what the caches hold (planNode, judge, domainStatus, assign); reconcilers fetch, decide, and write what
// differs by server-side apply. docs/design/operator.md gives the reasons.
package controllers
