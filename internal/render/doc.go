// SPDX-License-Identifier: Apache-2.0

// Package render turns domains and profiles into what one node should do: the spec of its CREMNode, and the problems that a
// person must solve. It is the one opinion that the operator, the stand-alone agent and kubectl-crem share.
//
// It is pure: no Kubernetes client, no clock, no file. Equal objects give equal results in whatever order they come
// (TestOrderOfObjectsDoesNotMatter). It also reads the same objects from YAML, as strictly as the API server does and with the
// same sentences (Decode, ValidateDomain, ValidateProfile); the rules that the API server enforces with CEL are repeated here in
// Go, and test/crd holds both against one table of examples.
package render
