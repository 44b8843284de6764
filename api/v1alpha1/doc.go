// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds the Kubernetes resources of CREM: CREMDomain and CREMProfile, which people write, CREMNode, which the
// operator writes for each node and that node's agent answers, and CREMEndpointSlice, by which the operator tells agents the
// addresses of pods.
//
// All are cluster-scoped: they describe nodes and the sites that nodes belong to. What one object can show to be wrong is
// refused by the API server with the CEL rules below, each with a sentence that says what to write instead; internal/render
// repeats the same rules for files and decides what needs several objects. Field documentation lives here and nowhere else:
// docs/api.md is written from it, and docs/configuration.md compared with it by a test.
//
// The kinds are alpha: a later version may change them, never silently.
//
// +kubebuilder:object:generate=true
// +groupName=crem.dev
// +kubebuilder:ac:generate=true
// +kubebuilder:ac:output:package=applyconfiguration
package v1alpha1

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 object:headerFile=../../hack/boilerplate.go.txt crd:maxDescLen=2000 applyconfiguration:headerFile=../../hack/boilerplate.go.txt,omitToolVersion=true paths=. output:crd:dir=../../config/crd/bases
//go:generate go run github.com/elastic/crd-ref-docs@v0.3.0 --log-level=ERROR --source-path=. --config=../../hack/apidoc/crd-ref-docs.yaml --renderer=markdown --output-path=../../docs/api.md
//go:generate go -C ../.. run ./hack/apidoc
