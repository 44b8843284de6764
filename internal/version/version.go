// SPDX-License-Identifier: Apache-2.0

// Package version holds the version that the linker writes into the programs.
package version

// Version is `git describe` of the source, set at link time.
var Version = "unknown"
