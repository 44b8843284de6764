// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"reflect"
	"testing"
	"time"

	"crem.dev/crem/sim/endpoint"
	"crem.dev/crem/sim/world"
)

// wan is the path of SDR-RDMA's evaluation: 400 Gbit/s, 3,750 km.
func wan(loss float64) world.Link {
	return world.Link{Rate: 400e9, Delay: 12500 * time.Microsecond, Loss: world.Loss{Rate: loss}}
}

func run(t *testing.T, s Scenario) Result {
	t.Helper()
	r, err := Run(s)
	if err != nil {
		t.Fatal(err)
	}
	if r.Wrong != 0 {
		t.Fatalf("the receiver got %d packets that nobody sent", r.Wrong)
	}
	return r
}

var transports = map[string]endpoint.Config{
	"go-back-N":   {Kind: endpoint.GoBackN},
	"veRoCE READ": {Kind: endpoint.VeRoCE, Operation: endpoint.Read},
	"SR RTO":      {Kind: endpoint.SelectiveRepeat},
	"SR NACK":     {Kind: endpoint.SelectiveRepeat, NACK: true},
	"MDS":         {Kind: endpoint.Coded, Code: endpoint.Code{K: 32, M: 8}},
	"XOR":         {Kind: endpoint.Coded, Code: endpoint.Code{K: 32, M: 8, XOR: true}},
}

// Without loss every transport takes the time to send and a round trip, and no packet is sent twice.
func TestLosslessIsIdeal(t *testing.T) {
	for name, c := range transports {
		r := run(t, Scenario{Link: wan(0), Transport: c, MessageOctets: 8<<20 + 1, Messages: 3, MTU: 4096})
		if !r.Done || r.Cost.Sent-r.Sender.Parity != r.Cost.Needed || r.Sender.Timeouts != 0 {
			t.Errorf("%s: %+v", name, r.Sender)
		}
		most := 1.001
		if c.Kind == endpoint.Coded {
			most = 1.003 // parity: 8 of 40 packets of 0.17 ms in 25.17 ms
		}
		for _, d := range r.Completions {
			if d < r.Ideal || r.OverIdeal(d) > most {
				t.Errorf("%s: a transfer took %v, the ideal is %v", name, d, r.Ideal)
			}
		}
	}
}

// The same scenario gives the same result, down to every counter; another seed gives another.
func TestSameSeedSameResult(t *testing.T) {
	for name, c := range transports {
		s := Scenario{Link: wan(1e-3), Transport: c, MessageOctets: 4 << 20, Messages: 4, MTU: 4096, Seed: 7}
		if c.Kind == endpoint.GoBackN {
			s.Protection = CREM()
		}
		a, b := run(t, s), run(t, s)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: two runs of one seed differ:\n%+v\n%+v", name, a, b)
		}
		s.Seed = 8
		if c := run(t, s); reflect.DeepEqual(a, c) {
			t.Errorf("%s: two seeds give the same", name)
		}
	}
}

// A sender that is faster than its bottleneck fills the queue, which drops, trims or marks; one that is held back never does.
func TestPaceFillsTheQueue(t *testing.T) {
	link := world.Link{Rate: 1e9, Delay: time.Millisecond, Queue: world.Queue{Octets: 50_000}}
	s := Scenario{Link: link, Back: &world.Link{Rate: 1e9, Delay: time.Millisecond}, MessageOctets: mib, Messages: 2, MTU: 1024, Transport: endpoint.Config{Retries: -1}}
	if r := run(t, s); r.Link.Full != 0 || r.Link.Peak > 2000 || !r.Done {
		t.Errorf("held back: %+v", r.Link)
	}
	s.Pace = 9e8
	if r := run(t, s); r.Link.Full != 0 || !r.Done || r.Mean() < r.Ideal+mib*8/9 {
		t.Errorf("slower than the link: %v, %+v", r.Mean(), r.Link)
	}
	s.Pace = 2e9
	if r := run(t, s); r.Link.Full == 0 || !r.Done || r.Link.Peak < 49_000 {
		t.Errorf("twice as fast: %+v", r.Link)
	}
	s.Link.Queue.Trim = 64
	s.Transport = endpoint.Config{Kind: endpoint.SelectiveRepeat, NACK: true}
	if r := run(t, s); r.Link.Trimmed == 0 || r.Link.Full != 0 || !r.Done || r.Sender.Timeouts != 0 {
		t.Errorf("trimmed: %+v, %+v", r.Link, r.Sender)
	}
}

// Losses that come with marks of congestion do not raise m (Section 5.3, rule 1): the real machines see the marks of the simulated queue.
func TestCongestionReachesCREM(t *testing.T) {
	s := Scenario{
		Link: world.Link{
			Rate: 1e9, Delay: 5 * time.Millisecond, Loss: world.Loss{Rate: 0.01},
			Queue: world.Queue{Octets: 1 << 20, Marking: world.Marking{Kind: world.Step, Low: 100_000}},
		},
		Back: &world.Link{Rate: 1e9, Delay: 5 * time.Millisecond}, Protection: CREM(),
		MessageOctets: 2 * mib, Messages: 3, Warmup: 1, MTU: 1024, Pace: 11e8, Transport: endpoint.Config{Retries: -1, Window: 700},
	}
	marked := run(t, s)
	s.Pace = 0
	clean := run(t, s)
	if marked.Link.CE == 0 || marked.CSF.Congested == 0 || clean.CSF.Congested != 0 {
		t.Fatalf("%d marks, %d congested intervals; without a queue %d", marked.Link.CE, marked.CSF.Congested, clean.CSF.Congested)
	}
	if marked.CSF.M >= clean.CSF.M {
		t.Errorf("m is %d under congestion, %d without", marked.CSF.M, clean.CSF.M)
	}
}

// A caller may stop at any time and has what there is; in portions it gets what Run returns.
func TestStepsAreTheSame(t *testing.T) {
	s := Scenario{Link: wan(1e-3), Protection: CREM(), MessageOctets: mib, Messages: 5, MTU: 4096, Seed: 2}
	whole := run(t, s)
	x, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	for x.Step(100) {
		done, all := x.Completed()
		if done < last || done > all || all != 5 || len(x.Result().Completions) != done {
			t.Fatalf("%d of %d have completed after %d, %d completions", done, all, last, len(x.Result().Completions))
		}
		last = done
	}
	if !reflect.DeepEqual(whole, x.Result()) {
		t.Errorf("in portions:\n%+v\nat once:\n%+v", x.Result(), whole)
	}
	s.Until = whole.Now / 2
	if half := run(t, s); half.Done || half.Now != s.Until || len(half.Completions) == 0 || len(half.Completions) >= 5 {
		t.Errorf("up to %v: %+v", s.Until, half)
	}
}

// What can't be simulated is refused, with a reason.
func TestImpossibleScenarios(t *testing.T) {
	good := Scenario{Link: wan(0), MessageOctets: 1, Messages: 1, MTU: 1024}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Scenario){
		"no octets":      func(s *Scenario) { s.MessageOctets = 0 },
		"no transfers":   func(s *Scenario) { s.Messages = 0 },
		"no MTU":         func(s *Scenario) { s.MTU = 0 },
		"MTU over RDMA":  func(s *Scenario) { s.MTU, s.Protection = 8192, CREM() },
		"no rate":        func(s *Scenario) { s.Link.Rate = 0 },
		"no way back":    func(s *Scenario) { s.Back = &world.Link{} },
		"no code":        func(s *Scenario) { s.Transport.Kind = endpoint.Coded },
		"negative pause": func(s *Scenario) { s.Pause = -1 },
		"negative pace":  func(s *Scenario) { s.Pace = -1 },
		"MRC's READ":     func(s *Scenario) { s.Transport = endpoint.Config{Kind: endpoint.MRC, Operation: endpoint.Read} },
		"RoCEv2's READ":  func(s *Scenario) { s.Transport.Operation, s.Protection = endpoint.Read, CREM() },
		"MRC's range":    func(s *Scenario) { s.Transport = endpoint.Config{Kind: endpoint.MRC, Range: 100} },
	} {
		s := good
		change(&s)
		if _, err := Run(s); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// MRC and veRoCE take what the others take: at 1 % loss both keep going where go-back-N breaks down.
func TestPacketTransportsHoldWhereGoBackNBreaks(t *testing.T) {
	s := Scenario{Link: world.Link{Rate: 10e9, Delay: time.Millisecond, Loss: world.Loss{Rate: 0.01}}, MessageOctets: 16 * mib, Messages: 4, MTU: 4096, Seed: 1}
	s.Transport = endpoint.Config{Kind: endpoint.GoBackN, Retries: -1}
	broken := run(t, s)
	for _, kind := range []endpoint.Kind{endpoint.MRC, endpoint.VeRoCE} {
		s.Transport = endpoint.Config{Kind: kind, Retries: -1}
		r := run(t, s)
		if !r.Done || r.Cost.SentOverNeeded() > 1.05 || r.Goodput() < 2*broken.Goodput() || broken.Cost.SentOverNeeded() < 2 {
			t.Errorf("%v: sent over needed %.3f, %.2f Gbit/s; go-back-N %.2f, %.2f Gbit/s", kind,
				r.Cost.SentOverNeeded(), r.Goodput()*8/1e9, broken.Cost.SentOverNeeded(), broken.Goodput()*8/1e9)
		}
	}
}

// A READ of veRoCE is a workload as a WRITE is: its responses are sent again only where they were lost, they cost what those of a WRITE cost, and CREM
// protects them.
func TestReadOfVeRoCE(t *testing.T) {
	s := Scenario{
		Link: world.Link{Rate: 1e9, Delay: 5 * time.Millisecond, Loss: world.Loss{Rate: 0.02}}, MessageOctets: 4 * mib, Messages: 6, Warmup: 1, MTU: 4096, Seed: 1,
		Transport: endpoint.Config{Kind: endpoint.VeRoCE, Retries: -1},
	}
	write := run(t, s)
	s.Transport.Operation = endpoint.Read
	read := run(t, s)
	s.Protection = CREM()
	protected := run(t, s)
	t.Logf("sent over needed: WRITE %.4f, READ %.4f, with CREM %.4f; %d of %d lost packets restored", write.Cost.SentOverNeeded(), read.Cost.SentOverNeeded(),
		protected.Cost.SentOverNeeded(), protected.CRF.Restored, protected.Link.Lost)
	if !read.Done || read.Cost.Needed != write.Cost.Needed || read.Cost.SentOverNeeded() < 1.01 || read.Cost.SentOverNeeded() > 1.05 {
		t.Errorf("READ %+v, WRITE %+v", read.Cost, write.Cost)
	}
	if !protected.Done || protected.CRF.Restored == 0 || (protected.Cost.SentOverNeeded()-1)*4 > read.Cost.SentOverNeeded()-1 {
		t.Errorf("with CREM: %+v", protected.Cost)
	}
	if protected.Cost.DataOctets != uint64(s.MessageOctets)*uint64(s.Messages) {
		t.Errorf("%d octets of %d transfers", protected.Cost.DataOctets, s.Messages)
	}

	s.Back, s.Protection = &world.Link{Rate: 1e9, Delay: 5 * time.Millisecond, Loss: world.Loss{Rate: 1 - 1e-12}}, Protection{}
	s.Transport.Retries = 2
	if r := run(t, s); r.Done || r.Error == "" || r.Cost.Timeouts != 3 {
		t.Errorf("no request comes: %+v", r)
	}
}
