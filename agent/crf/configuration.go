// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// configuration is one that was acknowledged and is not released (Section 5.2).
type configuration struct {
	id     uint8
	scheme fec.Scheme
	k, m   int
	T      int
	from   roce.PSN      // Effective PSN of its last PARAM_UPDATE
	used   time.Duration // of its last PARAM_UPDATE or REPAIR
}

// maxConfigs bounds the configurations that are kept at a time. A CSF needs two.
const maxConfigs = 8

// HandleParamUpdate takes a PARAM_UPDATE for the flow's ID from its peer and answers it. The same configuration is acknowledged
// again, also with a later Effective PSN; another one under an ID in use is refused (Section 5.2, rules 3 and 7).
func (f *Flow) HandleParamUpdate(now time.Duration, m *wire.ParamUpdate, acts *[]Action) {
	if f.state == Closed {
		f.drop(FlowClosed)
		return
	}
	f.firstRTT(now)
	status := f.judge(now, m)
	if status == wire.StatusAccepted {
		f.accept(now, m, acts)
	}
	f.stats.ParamAcks[status]++
	const size = 12
	if b := f.message(size); b != nil {
		ack := wire.ParamAck{FlowID: f.id, ConfigID: m.ConfigID, Status: status}
		f.send(ack.Append(b), acts)
	}
}

// firstRTT takes the time from HELLO_ACK to the first PARAM_UPDATE as the first sample (Section 5.1, rule 9). If HELLO_ACK was
// sent more than once, there is no telling which of them is answered.
func (f *Flow) firstRTT(now time.Duration) {
	switch {
	case f.state != Configuring || f.rtt.sampled:
		return
	case f.acks == 1:
		f.rtt.sample(now - f.firstAck)
	case f.acks > 1:
		f.rtt.bound(now-f.lastAck, now-f.firstAck)
	}
	f.stats.SRTT = f.rtt.smooth
}

// judge decides on a configuration.
func (f *Flow) judge(now time.Duration, m *wire.ParamUpdate) wire.Status {
	k, r, T := int(m.K), int(m.M), int(m.T)
	switch {
	case m.Scheme > 15 || m.Scheme != fec.SourceCopy && f.limits.schemes&(1<<m.Scheme) == 0:
		return wire.StatusUnsupportedScheme
	case k < 1 || k > f.limits.k || r > f.limits.m || T < minT || T > f.limits.T:
		return wire.StatusLimitsExceeded
	case m.Scheme == fec.SourceCopy && r > 0 || m.Scheme == fec.XOR && r > 1 || k+r > fec.MaxIndexSum+1:
		return wire.StatusLimitsExceeded
	}
	if c := f.config(m.ConfigID); c != nil {
		if c.scheme == m.Scheme && c.k == k && c.m == r && c.T == T {
			return wire.StatusAccepted
		}
		return wire.StatusLimitsExceeded
	}
	f.releaseConfigs(now)
	// A block and the one before it, whose repairs are on their way, with all repair symbols.
	if len(f.configs) == maxConfigs || int64(2*k+r)*cellOctets(T) > f.params.HoldBytes {
		return wire.StatusExhausted
	}
	return wire.StatusAccepted
}

// accept notes a configuration. With the first one the flow is protected from its next new packet on.
func (f *Flow) accept(now time.Duration, m *wire.ParamUpdate, acts *[]Action) {
	c := f.config(m.ConfigID)
	if c != nil && c.from == m.Effective {
		return // it only wants an answer, for its round trip
	}
	f.active = now
	for i := range f.configs {
		f.configs[i].used = now // a PARAM_UPDATE that comes again: the CSF may still use the old ones
	}
	if c != nil {
		c.from = m.Effective
		return
	}
	f.configs = append(f.configs, configuration{m.ConfigID, m.Scheme, int(m.K), int(m.M), int(m.T), m.Effective, now})
	f.stats.K, f.stats.M, f.stats.T = int(m.K), int(m.M), int(m.T)
	f.measureConfigs()
	if f.state == Configuring {
		f.state = Protecting
		f.adopt(m.Effective, acts)
	}
	f.wake()
}

// adopt begins to keep what is known about positions. What the sender will code begins at psn, which it has not seen yet. If that lies before
// all that was seen here, or before where the machine stood that this one follows, the queue pair number was used again meanwhile, or the sender's
// gateway has seen nothing but a second run: in both cases its positions count (Section 5.2, rule 2).
func (f *Flow) adopt(psn roce.PSN, acts *[]Action) {
	switch {
	case !f.started:
	case near(f.top, psn) < f.start:
		f.restart(psn, acts)
	default:
		f.track()
	}
}

// config returns the configuration of an ID, nil if there is none.
func (f *Flow) config(id uint8) *configuration {
	for i := range f.configs {
		if f.configs[i].id == id {
			return &f.configs[i]
		}
	}
	return nil
}

// keepConfig is how long a configuration lives without use after it was replaced: at least 4 SRTT (Section 5.2, rule 6), and as
// long as the CSF retains blocks of it (Section 7.2, rule 4).
func (f *Flow) keepConfig() time.Duration { return max(8*f.rtt.smooth, 200*time.Millisecond) }

// releaseConfigs releases those that were replaced and that nothing has used for long.
func (f *Flow) releaseConfigs(now time.Duration) {
	kept := f.configs[:0]
	for i, c := range f.configs {
		if i == len(f.configs)-1 || now-c.used <= f.keepConfig() || f.usesConfig(c.id) {
			kept = append(kept, c)
		}
	}
	if len(kept) < len(f.configs) {
		f.configs = kept
		f.measureConfigs()
	}
}

func (f *Flow) usesConfig(id uint8) bool {
	for _, b := range f.blocks {
		if b.config == id {
			return true
		}
	}
	return false
}

// measureConfigs reckons what depends on all configurations: how far a block reaches, and how wide cells must be.
func (f *Flow) measureConfigs() {
	f.reach = 0
	T := 0
	for _, c := range f.configs {
		f.reach, T = max(f.reach, c.k), max(T, c.T)
	}
	if f.cells == 0 {
		f.widest = T
	}
	f.widest = max(f.widest, T)
}
