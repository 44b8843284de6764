// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"net/netip"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

const (
	// paramAttempts is how often PARAM_UPDATE is sent before CLOSE with reason 3 (Section 5.2).
	paramAttempts = 8
	// configLives is how long a replaced configuration lives on, in SRTTs.
	configLives = 4
	// firstRetry and lastRetry bound the pause after a refused PARAM_UPDATE, and after a failed handshake.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// patientRetries of a failed handshake come firstRetry apart.
	patientRetries = 4
)

// choice is the parameters of a configuration. m is the most ordinary symbols of a block, not how many a block has.
type choice struct {
	scheme  fec.Scheme
	k, m, T int
}

// config is a configuration that the peer was told (Section 5.2).
type config struct {
	choice
	id         uint8
	effective  roce.PSN      // the latest one sent
	blocks     int           // that use it
	replacedAt time.Duration // roce.Never: in force, or waiting for its PARAM_ACK
}

// proposal is a PARAM_UPDATE that waits for its PARAM_ACK.
type proposal struct {
	config   *config
	attempts int
	sentAt   time.Duration // first transmission
	timeout  time.Duration
	due      time.Duration // next transmission, roce.Never: none waits
}

// refusal is what the peer or the path does not allow.
type refusal struct {
	status  wire.Status
	choice  choice
	schemes uint16        // bits of schemes that the peer refused
	again   time.Duration // not before then; roce.Never: nothing was refused
	pause   time.Duration
}

// want chooses the configuration that the flow should have. It is false if there is none: no common scheme, or a symbol
// does not fit the path (Section 4.1).
func (f *Flow) want() (choice, bool) {
	k := min(max(f.params.K, 1), 255)
	if f.id != 0 {
		k = min(k, f.limits.k)
	}
	T, ok := f.chooseT(k)
	if !ok {
		return choice{}, false
	}
	if f.id == 0 {
		return choice{k: k, T: T}, true // only whether a HELLO makes sense
	}
	T = min(T, f.limits.t)
	for _, s := range f.preference() {
		if !f.usable(s, k) {
			continue
		}
		return choice{scheme: s, k: k, m: f.bound(s, k), T: T}, k > 0 && T >= f.lead+roce.MinPayload+lengthPrefix
	}
	return choice{}, false
}

// preference is the schemes to try in order. Cauchy is the last resort of every profile that codes, because every end
// supports it (Section 4.3).
func (f *Flow) preference() []fec.Scheme {
	p := f.params.Schemes
	switch {
	case len(p) == 0:
		return defaultSchemes[:]
	case len(p) == 1 && p[0] == fec.XOR:
		return xorOrCauchy[:]
	}
	return p
}

var (
	defaultSchemes = [...]fec.Scheme{fec.Cauchy}
	xorOrCauchy    = [...]fec.Scheme{fec.XOR, fec.Cauchy}
)

// usable reports whether a scheme can be configured now: both ends know it, the peer has not refused it, and XOR only while a
// single symbol meets the target.
func (f *Flow) usable(s fec.Scheme, k int) bool {
	const ours = 1<<fec.SourceCopy | 1<<fec.Cauchy | 1<<fec.XOR
	bit := uint16(1) << (s & 15)
	if s > 15 || f.limits.schemes&^f.refused.schemes&ours&bit == 0 {
		return false
	}
	return s != fec.XOR || f.oneIsEnough(k)
}

// oneIsEnough reports whether a single symbol meets the target, with some hysteresis: XOR is left when it doesn't, and chosen again
// when it would at twice the loss.
func (f *Flow) oneIsEnough(k int) bool {
	e, _ := f.evidence()
	if f.current != nil && f.current.scheme == fec.XOR {
		return f.needed(k, 2, e) <= 1
	}
	twice := *e
	twice.double()
	return f.needed(k, 2, &twice) <= 1
}

// bound is the m of a configuration: never more than both ends allow and the Repair Indices give, with some left for two coded
// rounds. Ours never uses k + m over 255 (Section 4.3.2).
func (f *Flow) bound(s fec.Scheme, k int) int {
	most := max(f.params.MaxM, f.params.FixedM)
	most = min(most, f.limits.m, maxOrdinary)
	switch s {
	case fec.SourceCopy:
		return 0
	case fec.XOR:
		return min(most, 1)
	default:
		rounds := 2 * max(1, k/32)
		return max(min(most, 255-k-rounds), min(most, 1, 255-k), 0)
	}
}

// reconfigure proposes another configuration if the present one does not do. Only scheme, k, T and a larger bound need one;
// m acts at once (Section 9).
func (f *Flow) reconfigure(now time.Duration, acts *[]Action) {
	if f.id == 0 || f.proposal.due != roce.Never {
		return
	}
	want, ok := f.want()
	if !ok {
		f.misfit(now, acts)
		return
	}
	if c := f.current; c != nil && c.scheme == want.scheme && c.k == want.k && c.m >= want.m && c.T >= want.T && c.T <= f.fitT(c.k) {
		return
	}
	if f.refused.again != roce.Never && f.refused.choice == want && now < f.refused.again {
		return
	}
	c := f.newConfig(now, want)
	if c == nil {
		return // all Config IDs are in use; the next packet or report asks again
	}
	f.proposal = proposal{config: c, sentAt: now, timeout: max(2*f.rtt.smoothed(), time.Millisecond)}
	f.sendProposal(now, acts)
}

// misfit ends a flow for which no configuration is possible: the peer has no scheme of ours, or a symbol does not fit the path.
func (f *Flow) misfit(now time.Duration, acts *[]Action) {
	why := WhyNoScheme
	if f.stats.MTUNeed > 0 {
		why = WhyMTUTooSmall
	}
	f.sendClose(f.peer, f.id, wire.CloseUnspecified, acts)
	f.unbind(why)
	f.backOff(now)
}

// newConfig makes a configuration under a Config ID that is not in use.
func (f *Flow) newConfig(now time.Duration, c choice) *config {
	f.releaseConfigs(now)
	for range 256 {
		f.lastConfigID++
		if !f.configInUse(f.lastConfigID) {
			n := &config{choice: c, id: f.lastConfigID, replacedAt: roce.Never}
			f.configs = append(f.configs, n)
			return n
		}
	}
	return nil
}

func (f *Flow) configInUse(id uint8) bool {
	for _, c := range f.configs {
		if c.id == id {
			return true
		}
	}
	return false
}

// releaseConfigs forgets configurations that no block uses and that were replaced at least 4 SRTT ago.
func (f *Flow) releaseConfigs(now time.Duration) {
	kept := f.configs[:0]
	for _, c := range f.configs {
		if c.blocks == 0 && c.replacedAt != roce.Never && now-c.replacedAt >= configLives*f.rtt.smoothed() {
			continue
		}
		kept = append(kept, c)
	}
	clear(f.configs[len(kept):])
	f.configs = kept
}

// sendProposal sends the PARAM_UPDATE that waits, with the next PSN as Effective PSN. A repetition keeps the Config ID and has a
// later Effective PSN, because the former has passed (Section 5.2).
func (f *Flow) sendProposal(now time.Duration, acts *[]Action) {
	p := &f.proposal
	p.attempts++
	p.due = now + p.timeout
	p.timeout *= 2
	f.update(p.config, acts)
}

// update tells the peer a configuration, whose blocks start at the next PSN or after it.
func (f *Flow) update(c *config, acts *[]Action) {
	c.effective = f.newest.Add(1)
	f.stats.ParamUpdates++
	f.sendUpdate(c, acts)
}

func (f *Flow) sendUpdate(c *config, acts *[]Action) {
	m := wire.ParamUpdate{
		FlowID: f.id, ConfigID: c.id, Scheme: c.scheme, K: uint8(c.k), M: uint8(c.m), T: uint16(c.T), Effective: c.effective,
	}
	f.send(f.peer, m.Append(f.message()), acts)
}

// pollProposal repeats PARAM_UPDATE, and closes the flow after eight attempts (Section 5.2).
func (f *Flow) pollProposal(now time.Duration, acts *[]Action) {
	if now < f.proposal.due {
		return
	}
	if f.proposal.attempts < paramAttempts {
		f.sendProposal(now, acts)
		return
	}
	f.sendClose(f.peer, f.id, wire.CloseNoAnswer, acts)
	f.unbind(WhyNoAnswer)
	f.backOff(now)
}

// HandleParamAck takes a PARAM_ACK for the flow's ID (Section 5.2).
func (f *Flow) HandleParamAck(now time.Duration, from netip.AddrPort, m *wire.ParamAck, acts *[]Action) {
	if !f.fromPeer(now, from, m.FlowID) {
		return
	}
	p := &f.proposal
	if p.due == roce.Never || p.config.id != m.ConfigID {
		if !f.answerProbe(now, m.ConfigID) {
			f.drop(DropStaleAck)
		}
		return
	}
	f.sampleRTT(now, now-p.sentAt, p.attempts == 1)
	p.due = roce.Never
	if m.Status != wire.StatusAccepted {
		f.refuse(now, p.config, m.Status)
		f.reconfigure(now, acts) // another scheme may do
		return
	}
	f.activate(now, p, acts)
	f.pump(now, acts)
}

// activate puts an acknowledged configuration in force, from the next block on; an open block goes on under the old one. If the
// Effective PSN has passed meanwhile the peer is told the PSN from which blocks of the configuration really come (Section 5.2).
func (f *Flow) activate(now time.Duration, p *proposal, acts *[]Action) {
	if f.current != nil {
		f.current.replacedAt = now
	}
	f.current = p.config
	f.refused = refusal{schemes: f.refused.schemes, again: roce.Never}
	f.redundancy.forget()
	if p.config.effective != f.newest.Add(1) {
		f.update(p.config, acts)
	}
	f.forgetProbe(now)
	f.settle()
	f.reconfigure(now, acts)
}

// refuse remembers what the peer does not accept; the present configuration, if there is one, lives on. A scheme is not asked
// for again; anything else after a pause.
func (f *Flow) refuse(now time.Duration, c *config, status wire.Status) {
	f.stats.Refused++
	c.replacedAt = now
	r := &f.refused
	r.status, r.choice = status, c.choice
	if status == wire.StatusUnsupportedScheme {
		r.schemes |= 1 << (c.scheme & 15)
	}
	r.pause = min(max(2*r.pause, firstRetry), lastRetry)
	r.again = now + r.pause
	f.settle()
}

// pollRefusal asks again for what was refused when the pause is over.
func (f *Flow) pollRefusal(now time.Duration, acts *[]Action) {
	if now < f.refused.again {
		return
	}
	f.refused.again = roce.Never
	f.reconfigure(now, acts)
}
