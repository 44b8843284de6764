// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"time"
)

// fault is what keeps a tunnel from being measured, as a person should read it; empty: nothing does.
type fault string

// set tells of a fault that was not there before.
func (f *fault) set(e *Engine, x *tunnel, text string) {
	if *f == "" && text != "" && e.opts.Notice != nil {
		e.opts.Notice(fmt.Sprintf("tunnel from %v to %v: %s", x.Local, x.Remote, text))
	}
	*f = fault(text)
}

const (
	faultRecoloured = "packets come with another DSCP outside than inside, so what comes from there is not measured: have the nodes of the WAN leave the DSCP as it is, or remove spec.wan.measurement"
	faultExcess     = "more packets of a flow came out of the tunnel than went in, so what goes there is not measured: have the nodes of the WAN leave the DSCP as it is, look whether one doubles packets, or remove spec.wan.measurement"
	faultSilent     = "packets go into it with a colour, and its other end tells nothing of them, so what goes there is not measured: " +
		"write spec.wan.measurement: AlternateMarking in the domain of the other site too, or see there what kubectl crem explain says of its gateway"
)

func faultClocks(apart time.Duration) string {
	return fmt.Sprintf("by the clocks of both ends packets need %v, so what goes there is not measured: keep the clocks of the gateways within %v of each other, less the delay of the WAN (NTP)",
		apart.Round(time.Millisecond), clockRoom)
}
