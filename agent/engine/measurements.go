// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crem.dev/crem/agent/reporter"
	"crem.dev/crem/agent/roce"
)

// measurementsWaiting bounds what waits for a worker.
const measurementsWaiting = 64

// measurements are of flows of one worker that leave by one uplink.
type measurements struct {
	ifindex int
	list    []reporter.Measurement
}

// report gives measurements to the Path Reporters of the uplink by which the tunnel leaves. A worker that does not come to them reports none.
func (e *Engine) report(found []reporter.Measurement, ifindex int) {
	by := make([][]reporter.Measurement, len(e.workers))
	for _, x := range found {
		i := workerOf(x.Flow.Src, x.Flow.Dst, len(e.workers))
		by[i] = append(by[i], x)
	}
	for i, w := range e.workers {
		if len(by[i]) == 0 {
			continue
		}
		select {
		case w.measured <- measurements{ifindex, by[i]}:
		default:
			e.measuring.refuse(refusedBusy)
		}
	}
}

// takeMeasurements gives what the control side found to the Path Reporters.
func (w *worker) takeMeasurements() {
	for {
		select {
		case x := <-w.measured:
			w.reportMeasured(&x)
		default:
			return
		}
	}
}

// reportMeasured is about protected flows. Others have no CSF.
func (w *worker) reportMeasured(x *measurements) {
	p := w.ports[x.ifindex]
	if p == nil {
		return
	}
	for i := range x.list {
		if w.protectsInTunnel(&x.list[i].Flow) {
			p.out.of.HandleMeasurement(w.now, &x.list[i])
		}
	}
	w.timers.set(&p.out.timed, p.out.nextDeadline())
}

// protectsInTunnel reports whether a flow that goes into tunnels has a CSF here.
func (w *worker) protectsInTunnel(k *reporter.Flow) bool {
	key := roce.FlowKey{Src: k.Src, Dst: k.Dst, QPN: roce.QPN(k.Label)}
	for _, kind := range inTunnels { // who counts packets does not know it
		key.Space, key.Transport = kind.space, kind.transport
		if s := w.sending[key]; s != nil && s.machine != nil {
			return true
		}
	}
	return false
}
