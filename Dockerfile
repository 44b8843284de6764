# syntax=docker/dockerfile:1
# SPDX-License-Identifier: Apache-2.0
# One image with the programs of CREM, for several architectures without emulation, with SBOM and provenance:
#
#   docker buildx build --platform linux/amd64,linux/arm64 --sbom=true --provenance=mode=max \
#     --build-arg VERSION=$(git describe --tags) --build-arg SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) -t crem.dev/crem:0.1.0 --push .
#
# The same source, Go and base images give the same programs bit by bit. Releases name both images by digest.
ARG GO_IMAGE=golang:1.26.8-bookworm
ARG BASE_IMAGE=gcr.io/distroless/static-debian12:latest

FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
ARG TARGETOS TARGETARCH
ARG VERSION=unknown
# The SBOM names what the programs are built from, too: Go and every module.
ARG BUILDKIT_SBOM_SCAN_STAGE=true
WORKDIR /src
# Dependencies first: a change of the source does not fetch them again.
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
# The programs of the kernel side are in agent/bpf, compiled; make verify proves that they are what their source gives.
COPY api ./api
COPY agent ./agent
COPY cmd ./cmd
COPY controllers ./controllers
COPY internal ./internal
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} GOFLAGS=-mod=readonly \
    go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X crem.dev/crem/internal/version.Version=${VERSION}" \
    -o /out/ ./cmd/crem-agent ./cmd/crem-operator

FROM ${BASE_IMAGE}
ARG VERSION=unknown
LABEL org.opencontainers.image.title="CREM" \
      org.opencontainers.image.description="Protects RDMA (RoCEv2) traffic between data centers from packet loss on long links" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /out/crem-agent /out/crem-operator /
# The operator runs so; the agent's pod asks for user 0, since capabilities reach only that user in a container.
USER 65532:65532
ENTRYPOINT ["/crem-operator"]
