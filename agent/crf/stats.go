// SPDX-License-Identifier: Apache-2.0

package crf

// Stats are the counters and gauges of one flow.
type Stats struct{}
