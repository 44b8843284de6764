// SPDX-License-Identifier: Apache-2.0

package csf_test

import (
	"errors"
	"testing"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/wire"
)

// machines are the real machines of a flow at its two ends, and what they want done.
type machines struct {
	csf  *csf.Flow
	crf  *crf.Flow // nil before HELLO has arrived
	acts []csf.Action
	does []crf.Action
}

// message gives a CREM message to the machine that it is for: to the CSF if it went back. ce says that it came with a mark of congestion; open makes the
// CRF that a HELLO asks for.
func (m *machines) message(t testing.TB, now time.Duration, b []byte, back, ce bool, open func(h *wire.Hello) *crf.Flow) {
	t.Helper()
	h, err := wire.ParseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	if back {
		err = m.toCSF(now, b, h.Type)
	} else {
		err = m.toCRF(now, b, h.Type, ce, open)
	}
	if err != nil {
		t.Fatalf("%v, back %v: %v", h.Type, back, err)
	}
}

// toCRF gives a message of the CSF to the CRF.
func (m *machines) toCRF(now time.Duration, b []byte, kind wire.Type, ce bool, open func(h *wire.Hello) *crf.Flow) error {
	switch kind {
	case wire.TypeHello:
		x, err := wire.ParseHello(b)
		if m.crf == nil || m.crf.State() == crf.Closed || !m.crf.HandleHello(now, &x, &m.does) {
			m.crf = open(&x)
			m.crf.HandleHello(now, &x, &m.does)
		}
		return err
	case wire.TypeParamUpdate:
		x, err := wire.ParseParamUpdate(b)
		m.crf.HandleParamUpdate(now, &x, &m.does)
		return err
	case wire.TypeRepair:
		x, err := wire.ParseRepair(b)
		m.crf.HandleRepair(now, &x, ce, &m.does)
		return err
	case wire.TypeClose:
		x, err := wire.ParseClose(b)
		m.crf.HandleClose(now, &x, &m.does)
		return err
	default:
		return errNotForIt
	}
}

// toCSF gives a message of the CRF to the CSF.
func (m *machines) toCSF(now time.Duration, b []byte, kind wire.Type) error {
	switch kind {
	case wire.TypeHelloAck:
		x, err := wire.ParseHelloAck(b)
		m.csf.HandleHelloAck(now, gateway, &x, &m.acts)
		return err
	case wire.TypeParamAck:
		x, err := wire.ParseParamAck(b)
		m.csf.HandleParamAck(now, gateway, &x, &m.acts)
		return err
	case wire.TypeRepairRequest:
		x, err := wire.ParseRepairRequest(b)
		m.csf.HandleRequest(now, gateway, &x, &m.acts)
		return err
	case wire.TypeLossReport:
		x, err := wire.ParseLossReport(b)
		m.csf.HandleLossReport(now, gateway, &x, &m.acts)
		return err
	case wire.TypeClose:
		x, err := wire.ParseClose(b)
		m.csf.HandleClose(now, gateway, &x, &m.acts)
		return err
	default:
		return errNotForIt
	}
}

var errNotForIt = errors.New("this end has no use for it")
