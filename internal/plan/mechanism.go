// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"

	"crem.dev/crem/sim/model"
)

// Mechanism is a way to live with loss, and the completion of one message under it, in seconds.
type Mechanism struct {
	Key  string `json:"key"`
	Name string `json:"name"`
	// Overhead is the octets sent beyond the data, ahead of any loss, over the octets of data.
	Overhead float64 `json:"overhead"`
	Mean     float64 `json:"meanSeconds"`
	P50      float64 `json:"p50Seconds"`
	P99      float64 `json:"p99Seconds"`
	P999     float64 `json:"p999Seconds"`
	// Messages is how many were simulated, 0: by analysis. P999 is 0 where they are too few to tell.
	Messages int `json:"messages,omitempty"`
}

// Keys of mechanisms.
const (
	keyCREM      = "crem"
	keySimulated = "crem-simulated"
	keyTimer     = "selective-repeat-timer"
	keyNACK      = "selective-repeat"
	keyGoBackN   = "go-back-n"
	keyMDS       = "fixed-mds"
	keyXOR       = "fixed-xor"
	keyMRC       = "mrc"
	keyVeRoCE    = "veroce"
	// CREM under a transport that is not the input's.
	keyCREMMRC    = "crem-mrc"
	keyCREMVeRoCE = "crem-veroce"
)

// mechanismNames are for people.
var mechanismNames = map[string]string{
	keyCREM:      "CREM, this profile",
	keySimulated: "CREM, simulated",
	keyTimer:     "selective repeat, timer of 3 RTT",
	keyNACK:      "selective repeat, NACK",
	keyGoBackN:   "go-back-N (plain RoCEv2)",
	keyMDS:       "fixed code (32, 8)",
	keyXOR:       "fixed XOR (32, 8)",
	keyMRC:       "MRC",
	keyVeRoCE:    "veRoCE",

	keyCREMMRC:    "CREM under MRC",
	keyCREMVeRoCE: "CREM under veRoCE",
}

// contender is a mechanism with its distribution.
type contender struct {
	key      string
	overhead float64
	model.Distribution
}

// measure gives a contender's numbers.
func (c contender) measure() Mechanism {
	return Mechanism{
		Key: c.key, Name: mechanismNames[c.key], Overhead: c.overhead, Mean: c.Mean(),
		P50: model.Quantile(c, 0.5), P99: model.Quantile(c, 0.99), P999: model.Quantile(c, 0.999),
	}
}

// others are the mechanisms besides CREM that are known for the input. All lose acknowledgements as the link does.
func (in *Input) others() []contender {
	p, m := in.path(), in.message()
	timer := model.RTO * p.RTT
	timeout, window := in.timeout(), math.Inf(1)
	list := []contender{
		{keyGoBackN, 0, model.GoBackN(p, m, timeout)},
		{keyNACK, 0, model.Late{Distribution: model.SelectiveRepeat(p, m, model.NACK*p.RTT), Again: p.Back, Timeout: timer}},
		{keyTimer, 0, model.Late{Distribution: model.SelectiveRepeat(p, m, timer), Again: p.Back, Timeout: timer}},
		{keyMDS, model.SDR(model.MDS).Overhead(), model.Late{Distribution: model.SDR(model.MDS).Completion(p, m), Again: p.Back, Timeout: timer}},
	}
	if in.Burst == 1 { // the model of XOR knows no runs of losses
		list = append(list, contender{keyXOR, model.SDR(model.XOR).Overhead(), model.Late{Distribution: model.SDR(model.XOR).Completion(p, m), Again: p.Back, Timeout: timer}})
	}
	mrc := *in // its packets are larger
	mrc.Transport = MRC
	return append(list,
		contender{keyMRC, 0, model.MRC(p, mrc.message(), timeout, window)},
		contender{keyVeRoCE, 0, model.VeRoCE(p, m, timeout, window)},
	)
}

// protected are what CREM makes of transports with bitmaps that are not the input's.
func (in *Input) protected() (list []contender) {
	for _, t := range []struct {
		key       string
		transport Transport
	}{{keyCREMMRC, MRC}, {keyCREMVeRoCE, VeRoCE}} {
		if in.Transport == t.transport {
			continue
		}
		other := *in
		other.Transport = t.transport
		c := other.choose().contender
		c.key = t.key
		list = append(list, c)
	}
	return list
}

// timeout is the local ACK timeout in seconds that is reckoned with where there is no CREM: the NIC's, else the smallest that the path
// allows.
func (in *Input) timeout() float64 { return ackTimeout(in.exponent(in.RTT)).Seconds() }

// alone is the key of what the transport does without CREM.
func (in *Input) alone() string { return string(in.Transport) }
