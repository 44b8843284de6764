// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"

	"crem.dev/crem/sim/model"
)

// Survey is the p99.9 of all mechanisms, over the lossless completion, for other losses and other sizes of messages than the input's:
// CREM with the profile that is best for each.
type Survey struct {
	ByLoss []Sample `json:"byLoss"` // for the input's message
	BySize []Sample `json:"bySize"` // at the input's loss
	Map    []Sample `json:"map"`    // by loss, and within by size
}

// Sample is one point of a Survey.
type Sample struct {
	Loss    float64            `json:"loss"`
	Message int64              `json:"messageOctets"`
	P999    map[string]float64 `json:"p999OverLossless"` // by the mechanism's key
	Repair  float64            `json:"cremOverhead"`
	Best    string             `json:"best"` // the transport alone if it is within 3 % of the best, then CREM, else the best
}

// What a Survey looks at.
var (
	curveLosses = spaced(1e-7, 0.05, 24)
	mapLosses   = []float64{1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 5e-2}
	mapSizes    = doubled(128<<10, 8<<30, 2)
	curveSizes  = doubled(32<<10, 16<<30, 1)
)

// spaced gives n numbers from lo to hi, evenly on a logarithmic scale.
func spaced(lo, hi float64, n int) []float64 {
	list := make([]float64, n)
	for i := range list {
		list[i] = lo * math.Pow(hi/lo, float64(i)/float64(n-1))
	}
	return list
}

// doubled gives sizes from lo to hi, each times 2 to the power of twice.
func doubled(lo, hi int64, twice int) (list []int64) {
	for n := lo; n <= hi; n <<= twice {
		list = append(list, n)
	}
	return list
}

// Survey looks around. next is called before each sample and ends it by returning false; what there is by then is returned.
func (p *Plan) Survey(next func(done, all int) bool) *Survey {
	s := &Survey{}
	all := len(curveLosses) + len(curveSizes) + len(mapLosses)*len(mapSizes)
	done := 0
	take := func(to *[]Sample, loss float64, message int64) bool {
		if !next(done, all) {
			return false
		}
		done++
		in := p.Input
		in.Loss, in.Message = loss, message
		*to = append(*to, in.Sample())
		return true
	}
	for _, loss := range curveLosses {
		if !take(&s.ByLoss, loss, p.Input.Message) {
			return s
		}
	}
	for _, message := range curveSizes {
		if !take(&s.BySize, p.Input.Loss, message) {
			return s
		}
	}
	for _, loss := range mapLosses {
		for _, message := range mapSizes {
			if !take(&s.Map, loss, message) {
				return s
			}
		}
	}
	return s
}

// Sample compares all mechanisms for one input, which must be Normal.
func (in *Input) Sample() Sample {
	lossless := in.Lossless()
	c := in.choose()
	s := Sample{Loss: in.Loss, Message: in.Message, Repair: c.overhead, P999: map[string]float64{keyCREM: model.Quantile(c, 0.999) / lossless}}
	least := s.P999[keyCREM]
	s.Best = keyCREM
	for _, o := range in.others() {
		q := model.Quantile(o, 0.999) / lossless
		s.P999[o.key] = q
		if q < least {
			least, s.Best = q, o.key
		}
	}
	switch {
	case s.P999[in.alone()] <= (1+near)*least:
		s.Best = in.alone()
	case s.P999[keyCREM] <= (1+near)*least:
		s.Best = keyCREM
	}
	return s
}
