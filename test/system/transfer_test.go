// SPDX-License-Identifier: Apache-2.0

package system

import (
	"encoding/json"
	"net/netip"
	"time"

	"crem.dev/crem/test/lab/endpoint"
	"crem.dev/crem/test/lab/topology"
)

// transfer is RDMA traffic under way between the hosts.
type transfer struct {
	w                    *world
	requester, responder *topology.Process
	wait                 time.Duration
}

// done is what came of a transfer.
type done struct{ requester, responder endpoint.Result }

// corrupt counts wrong messages and octets of both ends.
func (d *done) corrupt() uint64 {
	return d.requester.Corrupt + d.responder.Corrupt + d.requester.CorruptOctets + d.responder.CorruptOctets
}

// rdma are the options of a short transfer that says something on a busy machine too.
func rdma() endpoint.Options {
	o := endpoint.DefaultOptions()
	o.Warmup, o.Duration, o.Drain = 500*time.Millisecond, 3*time.Second, 30*time.Second
	o.Size, o.Config.MTU, o.Config.Window, o.Config.Rate, o.Config.Retries = 100_000, 1024, 200, 25_000_000, -1
	o.Config.Timeout = 300 * time.Millisecond
	return o
}

// transfer starts the two ends; the requester is on host A unless back.
func (w *world) transfer(o endpoint.Options, ipv6, back bool) *transfer {
	w.t.Helper()
	hosts, addrs := [2]*topology.Namespace{w.lab.HostA, w.lab.HostB}, [2]netip.Addr{topology.HostA4, topology.HostB4}
	if ipv6 {
		addrs = [2]netip.Addr{topology.HostA6, topology.HostB6}
	}
	if back {
		hosts[0], hosts[1], addrs[0], addrs[1] = hosts[1], hosts[0], addrs[1], addrs[0]
	}
	asks, answers := o, o
	asks.Requester, answers.Requester = true, false
	asks.Device, answers.Device = topology.Device, topology.Device
	asks.Local, asks.Remote, answers.Local, answers.Remote = addrs[0], addrs[1], addrs[1], addrs[0]
	t := &transfer{w: w, wait: o.Warmup + o.Duration + o.Drain + patience}
	t.responder = w.start(hosts[1], programs.rc, answers.Args()...)
	if err := t.responder.Ready("ready", patience); err != nil {
		w.t.Fatal(err)
	}
	t.requester = w.start(hosts[0], programs.rc, asks.Args()...)
	if err := t.requester.Ready("ready", patience); err != nil {
		w.t.Fatal(err)
	}
	return t
}

// end waits for the transfer. Whatever the path did: every message was completed, and every octet is right.
func (t *transfer) end() *done {
	t.w.t.Helper()
	var d done
	out, err := t.requester.Wait(t.wait)
	if err == nil {
		err = unmarshal(out, &d.requester)
	}
	if err != nil {
		t.w.t.Fatal(err)
	}
	if out, err = t.responder.Stop(patience); err == nil {
		err = unmarshal(out, &d.responder)
	}
	if err != nil {
		t.w.t.Fatal(err)
	}
	if d.corrupt() > 0 {
		t.w.t.Errorf("%d corrupt: %+v, %+v", d.corrupt(), d.requester, d.responder)
	}
	if d.requester.Failed+d.responder.Failed+d.requester.Unfinished > 0 || d.requester.Messages == 0 {
		t.w.t.Errorf("%d messages complete, %d not, %d connections failed", d.requester.Messages, d.requester.Unfinished, d.requester.Failed+d.responder.Failed)
	}
	if n := d.requester.RingDropped + d.responder.RingDropped + d.requester.SendDropped + d.responder.SendDropped; n > 0 {
		t.w.t.Logf("the machine was too busy: the hosts lost %d frames by themselves", n)
	}
	return &d
}

// unmarshal reads what crem-rc printed.
func unmarshal(out []byte, r *endpoint.Result) error { return json.Unmarshal(out, r) }
