// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/render"
	"crem.dev/crem/sim/model"
)

// headroom is how many times the loss may grow before maxRepairSymbols holds back what epsilon asks for.
const headroom = 3

// profile is what the candidate is as an object of the API.
func (in *Input) profile(c candidate) v1alpha1.CREMProfile {
	spec := render.ProfileDefaults()
	spec.K = int32(c.crem.K)
	spec.Epsilon = decimal(c.target.epsilon)
	if c.target.message {
		size := octets(in.Message)
		spec.MessageSize = &size
	}
	spec.MaxRepairSymbols = in.maxRepairs(c)
	spec.MaxRepairRatio = in.maxRatio(c)
	if in.delivery() == crf.Immediate {
		spec.Delivery = v1alpha1.DeliveryImmediate
	}
	spec.MaxHold = &metav1.Duration{Duration: c.maxHold}
	if c.onDemand {
		spec.RepairStrategy = v1alpha1.RepairOnDemand
	}
	spec.Spread = &c.spread
	if in.Burst > 1 {
		spec.LossModel = v1alpha1.LossEmpirical
	}
	name := "planned"
	if in.Site != "" {
		name = "to-" + in.Site
		spec.Selector = &v1alpha1.FlowSelector{DestinationSites: []v1alpha1.SiteName{v1alpha1.SiteName(in.Site)}}
	}
	return v1alpha1.CREMProfile{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindProfile},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       spec,
	}
}

// maxRepairs leaves room for a loss that grows, and never less than the default.
func (in *Input) maxRepairs(c candidate) int32 {
	p := in.path()
	p.Loss = min(headroom*p.Loss, mostLoss)
	m := model.Repairs(p, in.message(), c.crem.K, c.target.perBlock(in.message(), c.crem.K), mostRepairs(c.crem.K))
	return int32(min(max(m, int(render.ProfileDefaults().MaxRepairSymbols)), mostRepairs(c.crem.K)))
}

// maxRatio is at least the default, and lets a quarter more through than what the candidate sends, as a multiple of 0.05.
func (in *Input) maxRatio(c candidate) string {
	usual, _ := render.Decimal(render.ProfileDefaults().MaxRepairRatio)
	needed := math.Ceil((1.25*c.overhead+in.Loss)*20) / 20
	return strconv.FormatFloat(min(max(usual, needed), 1), 'f', -1, 64)
}

// yaml is the profile as a person writes it: without what is the default.
func yaml(p *v1alpha1.CREMProfile) string {
	var b strings.Builder
	s, d := &p.Spec, render.ProfileDefaults()
	fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\nmetadata:\n  name: %s\nspec:\n", p.APIVersion, p.Kind, p.Name)
	line := func(differs bool, format string, args ...any) {
		if differs {
			fmt.Fprintf(&b, "  "+format+"\n", args...)
		}
	}
	line(true, "k: %d", s.K)
	line(true, "epsilon: %q", s.Epsilon)
	if s.MessageSize != nil {
		size := *s.MessageSize
		if _, err := strconv.Atoi(size); err == nil {
			size = strconv.Quote(size) // else YAML reads a number
		}
		line(true, "messageSize: %s", size)
	}
	line(s.MaxRepairSymbols != d.MaxRepairSymbols, "maxRepairSymbols: %d", s.MaxRepairSymbols)
	line(s.MaxRepairRatio != d.MaxRepairRatio, "maxRepairRatio: %q", s.MaxRepairRatio)
	line(true, "delivery: %s", s.Delivery)
	line(s.Delivery == v1alpha1.DeliveryInOrder, "maxHold: %s", s.MaxHold.Duration)
	line(true, "repairStrategy: %s", s.RepairStrategy)
	line(*s.Spread != *d.Spread, "spread: %t", *s.Spread)
	line(s.LossModel != d.LossModel, "lossModel: %s", s.LossModel)
	if s.Selector != nil {
		fmt.Fprintf(&b, "  selector:\n    destinationSites: [%s]\n", s.Selector.DestinationSites[0])
	}
	return b.String()
}

// decimal writes a number as the API does.
func decimal(f float64) string {
	if f == 0 || f >= 0.1 {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return strings.Replace(strconv.FormatFloat(f, 'e', -1, 64), "e-0", "e-", 1)
}

// octets writes a size as the API does.
func octets(n int64) string {
	for _, unit := range []struct {
		size   int64
		suffix string
	}{{1 << 30, "Gi"}, {1 << 20, "Mi"}, {1 << 10, "Ki"}} {
		if n%unit.size == 0 {
			return fmt.Sprintf("%d%s", n/unit.size, unit.suffix)
		}
	}
	return strconv.FormatInt(n, 10)
}
