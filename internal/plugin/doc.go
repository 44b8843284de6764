// SPDX-License-Identifier: Apache-2.0

// Package plugin holds the commands of kubectl-crem. They read an agent's local socket, files and captures; none of them changes
// anything. What they print as a table is for people and may change; -o json is for programs.
package plugin
