// SPDX-License-Identifier: Apache-2.0

// Package plan answers a planner's question: what will RDMA do over this link, which CREMProfile makes the best of it, and is something
// else better. It is pure: from an Input to a Plan, by the distributions of sim/model, and for CREM also by the simulator with the real
// machines. Nothing is asked of a cluster or of the system.
package plan
