// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"crem.dev/crem/agent/ipsec"
	"crem.dev/crem/internal/agentapi"
)

// finding is one thing that was shown, or was not; one object of build/e2e-ipsec.json.
type finding struct {
	IP    int    `json:"ip"` // of everything: flows, messages, outer headers
	What  string `json:"what"`
	OK    bool   `json:"ok"`
	Value any    `json:"value"`
}

const (
	ipsecLoss = 0.01
	// soonClosed bounds how late protection may end after a policy: milliseconds are documented, an emulated machine answers late.
	soonClosed = 3 * time.Second
	ipsecSize  = 16384
)

// runIPsec runs both families and returns the exit status.
func runIPsec(ctx context.Context, o *options) int {
	found, err := allFamilies(ctx, o)
	status := 0
	for _, f := range found {
		if !f.OK {
			status = 1
		}
	}
	if werr := write(o.out, found); err == nil {
		err = werr
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "crem-rxe:", err)
		return 2
	}
	return status
}

func allFamilies(ctx context.Context, o *options) (found []finding, err error) {
	start := time.Now()
	w, err := newWorld(ctx, o)
	if err != nil {
		return nil, err
	}
	defer w.close()
	p := w.ends()
	if err := w.provide(p); err != nil {
		return nil, err
	}
	for _, e := range p.both() {
		if err := w.build(ctx, p, e); err != nil {
			return nil, err
		}
	}
	fmt.Printf("sites ready after %.0f s\n", time.Since(start).Seconds())
	for family, ip := range []int{4, 6} {
		s := &scenario{w: w, p: p, family: family, ip: ip}
		err := s.run(ctx)
		found = append(found, s.found...)
		if err != nil {
			return found, fmt.Errorf("IPv%d: %w", ip, err)
		}
	}
	fmt.Printf("%d findings in %.0f s\n", len(found), time.Since(start).Seconds())
	return found, nil
}

// scenario is what is shown with one IP version.
type scenario struct {
	w          *world
	p          pair
	family, ip int
	found      []finding
}

func (s *scenario) note(what string, ok bool, value any) {
	s.found = append(s.found, finding{s.ip, what, ok, value})
	fmt.Printf("%-6s IPv%d  %s: %s\n", map[bool]string{true: "ok", false: "MISSED"}[ok], s.ip, what, shown(value))
}

// shown is a value as in the file.
func shown(value any) string {
	if s, ok := value.(string); ok {
		return s
	}
	text, _ := json.Marshal(value) // plain numbers and words
	return string(text)
}

func (s *scenario) run(ctx context.Context) error {
	if err := s.w.line.set(0, true); err != nil {
		return err
	}
	for _, e := range s.p.both() {
		if err := s.w.do(ctx, e, "ip -n gw xfrm policy flush; ip -n gw xfrm state flush"); err != nil {
			return err
		}
		if err := s.w.setPolicies(ctx, e, s.p.flowPolicies(e, s.family)); err != nil {
			return err
		}
	}
	if err := s.w.rekey(ctx, s.p, s.family, true); err != nil {
		return err
	}
	wire, err := s.w.openWire()
	if err != nil {
		return err
	}
	defer func() { _ = wire.close() }()
	for _, step := range []func(context.Context) error{s.withoutPolicies, s.withPolicies, s.underRekeying, s.data, s.policyRemoved} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	err = wire.close()
	seen := wire.counts()
	s.note("the line carries ESP, and nothing of flows or CREM in clear", seen.ESP > 0 && seen.RoCE+seen.CREM+seen.Missed == 0, seen)
	return err
}

// withoutPolicies: the policies cover the flows, not the CREM port. Flows run, encrypted and unprotected; nothing is said.
func (s *scenario) withoutPolicies(ctx context.Context) error {
	for _, e := range s.p.both() {
		if err := s.w.startAgent(ctx, s.p, e, s.family); err != nil {
			return err
		}
	}
	want := fmt.Sprintf("no ESP policy covers dir out, UDP from %s port 52000 to %s port 52000 if_id 0x2a", host(s.p.a.inner[s.family]), host(s.p.b.inner[s.family]))
	status, _, err := s.await(ctx, s.p.a, time.Minute, func(d agentapi.Domain) bool { return d.Security != "" })
	if err != nil {
		return err
	}
	d := status.Domains[0]
	s.note("without policies for the CREM port SecurityReady names the missing selector", d.Security == "PolicyMissing" && strings.Contains(d.SecurityProblem, want), d.SecurityProblem)
	if _, _, err := s.await(ctx, s.p.b, time.Minute, func(d agentapi.Domain) bool { return d.Security != "" }); err != nil {
		return err
	}
	c, err := s.transfer(ctx, 40, nil)
	if err != nil {
		return err
	}
	s.note("without them the flow runs unprotected", c.Failed == "" && c.Restored == 0, c)
	s.note("without them no message leaves", c.CREM == 0, c.CREM)
	return nil
}

// withPolicies: with the CREM port covered too, protection begins after the hold-down, and losses are restored.
func (s *scenario) withPolicies(ctx context.Context) error {
	for _, e := range s.p.both() {
		if err := s.w.setPolicies(ctx, e, s.p.messagePolicies(e, s.family)); err != nil {
			return err
		}
	}
	begin := time.Now()
	for _, e := range s.p.both() {
		if _, _, err := s.await(ctx, e, 2*time.Minute, secured); err != nil {
			return err
		}
	}
	took := time.Since(begin)
	s.note(fmt.Sprintf("with all policies the domain is secured, and not before the hold-down of %v", ipsec.HoldDown), took >= ipsec.HoldDown-time.Second, fmt.Sprintf("%.1f s", took.Seconds()))
	c, err := s.transfer(ctx, 160, nil)
	if err != nil {
		return err
	}
	s.note("with all policies losses are restored", c.Failed == "" && c.Restored > 0 && c.CREM > 0, c)
	return nil
}

// underRekeying: states are replaced while a flow runs.
func (s *scenario) underRekeying(ctx context.Context) error {
	times, always := 0, true
	var restored uint64 // when the first exchange was over
	c, err := s.transfer(ctx, 400, func() error {
		if err := s.w.rekey(ctx, s.p, s.family, false); err != nil {
			return err
		}
		times++
		for _, e := range s.p.both() {
			status, err := s.w.status(ctx, e)
			if err != nil {
				return err
			}
			always = always && secured(status.Domains[0])
			if e == s.p.b && times == 1 {
				restored = status.Counters["crf_restored"]
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	status, err := s.w.status(ctx, s.p.b)
	if err != nil {
		return err
	}
	since := status.Counters["crf_restored"] - restored
	s.note("re-keying under traffic interrupts no protection", c.Failed == "" && times >= 2 && always && since > 0,
		map[string]any{"exchanges": times, "always_secured": always, "restored_since_the_first": since, "transfer": c})
	return nil
}

// data: rping compares every octet that came back.
func (s *scenario) data(ctx context.Context) error {
	if err := s.w.line.set(ipsecLoss, true); err != nil {
		return err
	}
	c := sized(testCase{Test: "rping", IP: s.ip, MTU: 1024, Loss: ipsecLoss, Protected: true})
	_, failed, err := s.w.transfer(ctx, c)
	if err != nil {
		return err
	}
	s.note("data in memory are what was sent (rping -V)", failed == "", map[string]any{"messages": c.Messages, "octets": c.Size, "failed": failed})
	return nil
}

// policyRemoved: one policy goes while protection is on.
func (s *scenario) policyRemoved(ctx context.Context) error {
	before, err := s.w.status(ctx, s.p.a)
	if err != nil {
		return err
	}
	one := s.p.messagePolicies(s.p.a, s.family)[0]
	one, _, _ = strings.Cut(one, " tmpl")
	if err := s.w.do(ctx, s.p.a, "ip -n gw xfrm policy delete "+one); err != nil {
		return err
	}
	status, took, err := s.await(ctx, s.p.a, time.Minute, func(d agentapi.Domain) bool { return !secured(d) })
	if err != nil {
		return err
	}
	s.note("a policy that goes ends protection at once", took < soonClosed && secured(before.Domains[0]), fmt.Sprintf("%.1f s: %s", took.Seconds(), status.Domains[0].SecurityProblem))
	c, err := s.transfer(ctx, 40, nil)
	if err != nil {
		return err
	}
	s.note("after that the flow goes on unprotected", c.Failed == "" && c.Restored == 0, c)
	return nil
}

func secured(d agentapi.Domain) bool { return d.Security == "Secured" }

func host(addr string) string {
	if strings.Contains(addr, ":") {
		return addr + "/128"
	}
	return addr + "/32"
}

// await asks an agent until its domain is as wanted, and tells how long that took.
func (s *scenario) await(ctx context.Context, e *end, limit time.Duration, wanted func(agentapi.Domain) bool) (status agentapi.Status, took time.Duration, err error) {
	start := time.Now()
	for {
		status, err = s.w.status(ctx, e)
		took = time.Since(start)
		switch {
		case err == nil && len(status.Domains) == 1 && wanted(status.Domains[0]):
			return status, took, nil
		case err != nil && !errors.Is(err, errNoAnswer) || ctx.Err() != nil:
			return status, took, err
		case took > limit:
			return status, took, fmt.Errorf("the agent of %s is not as wanted after %v: %+v, %w", e.name, limit, status.Domains, errors.Join(err, errNoAnswer))
		}
	}
}

// carried is what one transfer did, of both agents and the sending host.
type carried struct {
	Sent     int    `json:"packets_sent"`   // by Soft-RoCE
	Needed   int    `json:"packets_needed"` // that the messages are
	Restored uint64 `json:"restored"`
	CREM     uint64 `json:"crem_messages"` // that the agents sent
	Failed   string `json:"failed,omitempty"`
	Seconds  int    `json:"seconds"`

	Agents [2]map[string]uint64 `json:"agents"` // of sender and receiver: what their counters moved
}

// transfer runs ib_send_bw over a line that loses packets, and calls during again and again meanwhile. A guest takes one command at a time, so
// perftest runs in its background.
func (s *scenario) transfer(ctx context.Context, messages int, during func() error) (c carried, err error) {
	test := testCase{Test: "ib_send_bw", IP: s.ip, MTU: 1024, Loss: ipsecLoss, Protected: true, Calm: true, Messages: messages, Size: ipsecSize}
	server, client, port := test.commands()
	c.Needed = test.packets()
	before, err := s.counters(ctx)
	if err != nil {
		return c, err
	}
	limit := int(caseLimit.Seconds())
	background := "rm -f /tmp/status; (timeout %d %s >/tmp/log 2>&1; echo $? >/tmp/status) >/dev/null 2>&1 &"
	if _, err := s.w.guestB.Run(ctx, 10*time.Second, fmt.Sprintf(background, limit+20, server)); err != nil {
		return c, err
	}
	if err := s.w.waitForServer(ctx, port); err != nil {
		return c, err
	}
	if err := s.w.line.set(ipsecLoss, true); err != nil {
		return c, err
	}
	begin := time.Now()
	if _, err := s.w.guestA.Run(ctx, 10*time.Second, fmt.Sprintf(background, limit, client)); err != nil {
		return c, err
	}
	for status := ""; status == ""; {
		out, err := s.w.guestA.Run(ctx, 10*time.Second, "sleep 1; cat /tmp/status 2>/dev/null; true")
		if err != nil {
			return c, err
		}
		if status = strings.TrimSpace(out); status == "" && during != nil {
			if err := during(); err != nil {
				return c, err
			}
		}
		if status != "" && status != "0" {
			out, _ := s.w.guestA.Run(ctx, 10*time.Second, "tail -n 3 /tmp/log")
			c.Failed = "status " + status + ": " + strings.TrimSpace(out)
		}
	}
	c.Seconds = int(time.Since(begin).Seconds())
	if err := s.w.line.set(0, true); err != nil {
		return c, err
	}
	after, err := s.counters(ctx)
	c.Sent = after.sent - before.sent
	for i := range after.agents {
		c.Agents[i] = map[string]uint64{}
		for name, n := range after.agents[i] {
			if d := n - before.agents[i][name]; d != 0 {
				c.Agents[i][name] = d
			}
		}
		c.Restored += c.Agents[i]["crf_restored"]
		c.CREM += c.Agents[i]["socket_sent"]
	}
	return c, err
}

// counts are the packets that host A sent, and what both agents count.
type counts struct {
	sent   int
	agents [2]map[string]uint64
}

func (s *scenario) counters(ctx context.Context) (c counts, err error) {
	hardware, err := hardwareCounters(ctx, s.w.guestA)
	if err != nil {
		return c, err
	}
	c.sent = hardware["sent_pkts"]
	for i, e := range s.p.both() {
		status, err := s.w.status(ctx, e)
		if err != nil {
			return c, err
		}
		c.agents[i] = status.Counters
		for name, n := range status.Drops {
			c.agents[i][name] += n
		}
	}
	return c, nil
}
