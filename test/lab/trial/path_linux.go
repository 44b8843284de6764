// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"context"
	"net/http"
	"strings"

	"crem.dev/crem/test/lab/bridge"
)

// SetPath changes the settings of the WAN while the transfer runs, by a text as bridge.Handler takes it: {"a_to_b": {"loss": 0.01}}.
func (r *Running) SetPath(ctx context.Context, change string) error {
	return ask(ctx, r.control, http.MethodPatch, "http://wan/v1/settings", strings.NewReader(change), nil)
}

// Path returns the counters of the WAN so far.
func (r *Running) Path(ctx context.Context) (report bridge.Report, err error) {
	err = ask(ctx, r.control, http.MethodGet, "http://wan/v1/stats", nil, &report)
	return report, err
}
