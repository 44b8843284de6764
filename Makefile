# CREM: protects RoCEv2 flows over long, lossy links. `make help` lists the targets.
SHELL := /bin/bash
GO ?= go
BUILD := build
CACHE ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/crem
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X crem.dev/crem/internal/version.Version=$(VERSION)
PROGRAMS := crem-agent crem-operator kubectl-crem
LAB_PROGRAMS := crem-wan crem-rc crem-demo crem-adapt
FUZZINPUTS ?= 100000x
# Packages whose tests run programs against the clock: one after the other.
TIMED := /test/(system|lab/(bridge|topology|trial))$$
# The control side of the engine, which has goroutines; its agents under virtual time have none, and take minutes under the race detector.
CONTROL := Rules|RequiredIPsec|G03|G06|Sites|Tables|Pairing|SureRanges|Limits|Nonces|Judge|MessageForAnother
PURE := ./agent/roce/... ./agent/wire/... ./agent/fec/... ./agent/csf/... ./agent/crf/... ./sim/...

.DEFAULT_GOAL := help
.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^[a-zA-Z0-9_-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## The programs, static, into build/
	@mkdir -p $(BUILD)
	@for p in $(PROGRAMS); do echo "build $$p"; CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BUILD)/$$p ./cmd/$$p || exit 1; done

.PHONY: build-lab
build-lab: build ## The lab's programs too
	@for p in $(LAB_PROGRAMS); do echo "build $$p"; CGO_ENABLED=0 $(GO) build -trimpath -o $(BUILD)/$$p ./test/lab/cmd/$$p || exit 1; done

.PHONY: demo
demo: build-lab ## The same transfer without and with CREM over a lossy 20 ms link (root; under 5 minutes)
	$(BUILD)/crem-demo -agent $(BUILD)/crem-agent -out $(BUILD)/demo.json -svg docs/images/demo.svg

.PHONY: adapt
adapt: build-lab ## Redundancy while the path changes: build/adapt.json and a table (root; about 6 minutes)
	$(BUILD)/crem-adapt -agent $(BUILD)/crem-agent -out $(BUILD)/adapt.json

.PHONY: envtest
envtest: ## kube-apiserver, etcd and kubectl for the tests, from Go modules, once (about 10 minutes on two cores)
	test/lab/kube/kube.sh build kube-apiserver etcd kubectl

.PHONY: kube
kube: ## All of Kubernetes and helm for make e2e, from Go modules, once (about 10 minutes more)
	test/lab/kube/kube.sh build
	hack/tools/kube/build.sh

# Tests are built as the programs are, so that they share what is compiled; go vet is the linter's.
.PHONY: test
test: export CREM_REQUIRE_ENVTEST = 1
test: envtest ## Unit, property, golden, fuzz seeds, race, network namespaces, a real API server (as root)
	@mkdir -p $(CACHE)
	@cd hack/tools && $(GO) build -o $(CACHE)/gotestsum gotest.tools/gotestsum
	CGO_ENABLED=0 hack/test.sh $(CACHE)/gotestsum "$$($(GO) list ./... | grep -vE '$(TIMED)')" -trimpath -count=1 -shuffle=on -timeout 15m
	CGO_ENABLED=0 hack/test.sh $(CACHE)/gotestsum "$$($(GO) list ./... | grep -E '$(TIMED)')" -trimpath -count=1 -p 1 -timeout 15m
	$(GO) test -count=1 -race -short -timeout 20m ./agent/roce/... ./agent/wire/... ./agent/fec/... ./agent/metrics/... ./agent/ipsec/... ./internal/agentclient/...
	$(GO) test -count=1 -race -short -timeout 20m -run '^TestSection' ./agent/csf ./agent/crf
	$(GO) test -count=1 -race -short -timeout 20m -run '$(CONTROL)' ./agent/engine

.PHONY: test-long
test-long: export CREM_REQUIRE_ENVTEST = 1
test-long: envtest ## The 40,000-block mixed-copies simulation, the operator with 5,000 nodes, the image for arm64, and the other long proofs
	CREM_LONG=1 $(GO) test -count=1 -timeout 60m -run 'MixedCopies|Exhaustive|Long' -v $(PURE)
	CREM_LONG=1 CGO_ENABLED=0 $(GO) test -trimpath -count=1 -timeout 20m -run 'TestG05NoWritesAtRest|TestG15' -v ./test/operator
	CREM_LONG=1 CGO_ENABLED=0 $(GO) test -trimpath -count=1 -v ./test/image

.PHONY: scale
scale: export CREM_REQUIRE_ENVTEST = 1
scale: envtest ## The operator among 5,000 nodes and 120,000 pods on a real API server: build/scale.json (about 15 minutes, 8 GiB)
	@mkdir -p $(BUILD)
	CREM_SCALE=$(abspath $(BUILD))/scale.json CGO_ENABLED=0 $(GO) test -trimpath -count=1 -timeout 60m -run '^TestScaleOfACluster$$' -v ./test/operator

.PHONY: fuzz
fuzz: ## Every fuzz target with FUZZINPUTS inputs each (default 100000x)
	hack/fuzz.sh $(FUZZINPUTS)

.PHONY: bench
bench: build-lab ## Coding, machines and one gateway core against the kernel: build/bench.json and text
	hack/bench.sh $(BUILD)

.PHONY: compare
compare: ## CREM against other mechanisms over loss, RTT and message size: build/compare.json, docs/compare.md (12 minutes)
	@mkdir -p $(BUILD)
	$(GO) run ./hack/compare -out $(BUILD)/compare.json -page docs/compare.md -version $(VERSION)

.PHONY: e2e-rxe
e2e-rxe: build ## Real Soft-RoCE and perftest in virtual machines: build/e2e-rxe.json (root; installs qemu and perftest)
	test/rxe/run.sh full

.PHONY: e2e-ipsec
e2e-ipsec: build ## ipsec: Required with real ESP: gateways in virtual machines, Soft-RoCE behind them: build/e2e-ipsec.json (root; installs qemu and perftest)
	test/rxe/run.sh ipsec

.PHONY: e2e
e2e: build-lab kube ## Two real Kubernetes sites with operator and agents: build/e2e.json (root; installs containerd and more)
	test/lab/kube/kube.sh packages
	test/e2e/run.sh full

.PHONY: bpf
bpf: ## Rebuild the BPF objects (clang, libbpf-dev)
	$(GO) generate ./agent/bpf

.PHONY: generate
generate: ## Rebuild every generated file
	$(GO) generate ./...

.PHONY: verify
verify: ## Generated files are what their sources say, module files are tidy, manifests are accepted, no vulnerability is known; then lint
	hack/verify.sh
	$(if $(SKIP_LINT),@echo "lint is left to make lint",$(MAKE) lint)

.PHONY: lint
lint: ## golangci-lint, built from its pinned module
	@mkdir -p $(CACHE)
	@cd hack/tools && $(GO) build -o $(CACHE)/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	$(CACHE)/golangci-lint run ./...

.PHONY: fmt
fmt: ## gofmt
	gofmt -l -w $$(git ls-files '*.go')

.PHONY: clean
clean: ## Remove build/
	rm -rf $(BUILD)
