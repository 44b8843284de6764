// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/sim/model"
)

// Finding is one thing that a person should know or do.
type Finding struct {
	Topic string `json:"topic"`
	Level Level  `json:"level"`
	Says  string `json:"says"`
}

// Level says how much a finding matters.
type Level string

// Levels.
const (
	Act  Level = "act"  // do this, or the numbers do not hold
	Note Level = "note" // know this
	Fine Level = "fine" // checked and good
)

func (p *Plan) say(level Level, topic, format string, args ...any) {
	p.Findings = append(p.Findings, Finding{Topic: topic, Level: level, Says: fmt.Sprintf(format, args...)})
}

// find looks at everything, in the order in which it is read.
func (p *Plan) find() {
	p.findBest()
	p.findProtection()
	p.findBreaker()
	p.findMTU()
	p.findWindow()
	p.findTimeout()
	p.findHold()
	p.findMemory()
	p.findSize()
}

// findBest says which mechanism wins and why.
func (p *Plan) findBest() {
	crem, alone, best := p.crem(), p.alone(), p.best()
	gain := alone.P999 / crem.P999
	switch {
	case best.Key != keyCREM && best.Key == alone.Key:
		p.say(Note, "best", "Leave CREM off for this traffic: %s alone has a p99.9 of %s, with CREM it is %s, because so little is lost that %s costs more than it saves.",
			best.Name, duration(best.P999), duration(crem.P999), p.price())
	case best.Key != keyCREM:
		p.say(Note, "best", "%s would do better, with a p99.9 of %s against %s with CREM, %s. It needs NICs that have it; with %s as it is, CREM is %s.",
			capital(best.Name), duration(best.P999), duration(crem.P999), p.why(best), alone.Name, times(gain))
	case gain < 1+near && alone.Mean < (1+near)*crem.Mean:
		p.say(Note, "best", "CREM makes no difference that matters here: p99.9 is %s with it and %s without; leave it off, or keep it for days when the loss is higher.",
			duration(crem.P999), duration(alone.P999))
	default:
		p.say(Fine, "best", "Use CREM: it brings p99.9 from %s to %s (%s), and the mean from %s to %s; no other mechanism that was compared has a p99.9 more than 3 %% below.",
			duration(alone.P999), duration(crem.P999), times(gain), duration(alone.Mean), duration(crem.Mean))
	}
}

// price is what CREM costs here.
func (p *Plan) price() string {
	if p.Repairs == 0 {
		return "a round trip of coded retransmission"
	}
	return fmt.Sprintf("%s of repair symbols", percent(p.crem().Overhead))
}

// why says what makes another mechanism win.
func (p *Plan) why(best *Mechanism) string {
	late, _ := p.chosen.Distribution.(model.Late)
	switch {
	case model.Quantile(late.Distribution, 0.999) <= (1+near)*best.P999:
		return "because its timer is shorter when the last acknowledgement of a message is lost, which CREM does not protect"
	case best.Overhead > p.crem().Overhead:
		return fmt.Sprintf("because it spends %s of the link ahead of every loss", percent(best.Overhead))
	default:
		return "because it sends no octet ahead of a loss, on a link that the message keeps busy for longer than a round trip"
	}
}

// findProtection says what is sent, and what becomes of losses.
func (p *Plan) findProtection() {
	c, o := p.chosen.crem, p.Outcome
	if p.Input.Loss == 0 {
		p.say(Note, "protection", "A link without any loss needs no protection; write the worst loss that it has had, not the best.")
		return
	}
	if p.chosen.onDemand {
		p.say(Fine, "protection", "No repair symbol is sent ahead of a loss: of %s blocks that lose a packet, %s are restored by one request, a round trip later.", share(o.Lossy), percent(o.OnRequest/o.Lossy))
	} else {
		packets := min(c.K, int(p.Input.message().Packets()))
		p.say(Fine, "protection", "%d repair %s for every %d %s, %s more octets on the link; %s of the blocks lose a packet, and of these all but %s are restored without a round trip.",
			c.M, plural(c.M, "symbol"), packets, plural(packets, "packet"), percent(p.crem().Overhead), share(o.Lossy), share(1-o.InTime/o.Lossy))
	}
	if !p.chosen.spread {
		p.say(Note, "spread", "Losses are taken for independent, so all symbols of a block leave at its end, and the end of a message need not wait for them: write --burst where losses come in runs.")
	}
	blocks := math.Ceil(p.Input.message().Packets() / float64(c.K))
	left := -math.Expm1(blocks * math.Log1p(-o.Left))
	if left*c.LastResort > near*p.crem().Mean {
		p.say(Act, "protection", "%s of the messages still leave a loss to RDMA, which costs about %s each: use smaller messages, or a smaller RDMA MTU if the loss grows with the size of packets.",
			share(left), duration(c.LastResort))
	}
	if p.Input.Loss > 1e-3 && p.Input.Transport == GoBackN && !p.Input.LosslessBack {
		p.say(Note, "last acknowledgement", "CREM protects data, not acknowledgements: where the link loses %s of them, that share of the messages waits for the local ACK timeout (%s) at its end.",
			share(p.Input.Loss), duration(p.chosen.timeout))
	}
}

// breakerLoss is the loss over which CREM stops (Section 10, rule 5).
const breakerLoss = 0.1

func (p *Plan) findBreaker() {
	if p.Input.Loss > breakerLoss {
		p.say(Act, "circuit breaker", "A loss over 10 %% opens CREM's circuit breaker, and everything is left to RDMA: mend the link, or try a smaller RDMA MTU, as loss often grows with the size of packets.")
	}
}

// findMTU does the arithmetic of Section 4.1.
func (p *Plan) findMTU() {
	in, k := &p.Input, p.chosen.crem.K
	need, plain := in.neededMTU(in.RDMAMTU, k), in.packetMTU(in.RDMAMTU)
	sum := fmt.Sprintf("RDMA packets of %d octets of data need an IP MTU of %d, their largest REPAIR %d (%s)", in.RDMAMTU, plain, need, p.arithmetic())
	switch {
	case in.LinkMTU == 0:
		p.say(Act, "MTU", "%s: set the link and every uplink to %d or more, as REPAIRs are never fragmented.", sum, need)
	case need <= in.LinkMTU:
		p.say(Fine, "MTU", "%s: the link's %d is enough.", sum, in.LinkMTU)
	default:
		smaller := ""
		for _, mtu := range rdmaMTUs {
			if in.neededMTU(mtu, k) <= in.LinkMTU {
				smaller = fmt.Sprintf(", or set the RDMA MTU to %d", mtu)
				break
			}
		}
		p.say(Act, "MTU", "%s, and the link has %d: flows would pass unprotected; raise the link to %d%s.", sum, in.LinkMTU, need, smaller)
	}
}

// arithmetic is the sum of the largest REPAIR.
func (p *Plan) arithmetic() string {
	in, k := &p.Input, p.chosen.crem.K
	symbol := (32+in.RDMAMTU+4+2+3)&^3 + in.wider()
	rest := in.neededMTU(in.RDMAMTU, k) - symbol - in.ipHeader() - udpHeader - in.Tunnel
	text := fmt.Sprintf("IP %d + UDP %d + CREM %d + symbol %d", in.ipHeader(), udpHeader, rest, symbol)
	if in.Tunnel > 0 {
		text += fmt.Sprintf(" + tunnel %d", in.Tunnel)
	}
	return text
}

// maxOutstanding is half the PSN space, beyond which PSNs can not be told apart; csf keeps blocks of at most half of that.
const maxOutstanding = 1 << 22

func (p *Plan) findWindow() {
	in := &p.Input
	rate := float64(in.Bandwidth) / float64(in.Flows)
	product := rate / 8 * in.RTT.Seconds()
	packets := math.Ceil(product / float64(in.RDMAMTU))
	window := in.transportWindow()
	switch {
	case in.Transport == MRC && packets > window:
		p.say(Act, "window", "MRC keeps at most %.0f packets of a queue pair in flight (max_psn_range), %s of the %.0f that the path holds, so one sends at most %s, whatever protects it: use at least %.0f queue pairs.",
			window, percent(window/packets), packets, rateText(window/packets*rate), math.Ceil(packets*float64(in.Flows)/window))
	case packets > maxOutstanding:
		p.say(Act, "window", "One queue pair would have %.0f packets in flight, more than PSNs allow to tell apart safely (%d): use at least %.0f queue pairs.",
			packets, maxOutstanding, math.Ceil(packets*float64(in.Flows)/maxOutstanding))
	case in.Window > 0 && float64(in.Window) < product:
		p.say(Act, "window", "A window of %s a queue pair is %s of what the path holds (%s): it sends at most %s, whatever protects it; allow more work requests in flight, or use %.0f queue pairs.",
			size(float64(in.Window)), percent(float64(in.Window)/product), size(product), rateText(in.rate()), math.Ceil(float64(in.Flows)*product/float64(in.Window)))
	case in.Window > 0:
		p.say(Fine, "window", "A window of %s a queue pair holds the %s that the path does.", size(float64(in.Window)), size(product))
	case float64(in.Message) < product:
		p.say(Note, "window", "The path holds %s a queue pair (%.0f packets) and a message is %s: post at least %.0f messages at a time, or the link idles.",
			size(product), packets, size(float64(in.Message)), math.Ceil(product/float64(in.Message))+1)
	default:
		p.say(Note, "window", "The path holds %s a queue pair (%.0f packets): the NIC must be allowed that many in flight.", size(product), packets)
	}
}

// findTimeout compares the NIC's local ACK timeout with what an acknowledgement may take.
func (p *Plan) findTimeout() {
	in := &p.Input
	if in.Transport != GoBackN {
		p.say(Note, "timers", "The NIC's retransmission timer must be over %s: with CREM a lost packet is restored up to a round trip late.", duration(2*in.RTT.Seconds()))
		return
	}
	longest, needed := in.longestWait(p.chosen.maxHold), in.leastExponent(p.chosen.maxHold)
	reach := ackTimeout(needed)
	switch n := in.AckTimeout; {
	case n == 0:
		p.say(Act, "timers", "Set the local ACK timeout to %d (%s): an acknowledgement takes up to %s, a round trip and the wait for a repair; a shorter one sends whole windows twice, a longer one makes a lost last acknowledgement dearer (NCCL_IB_TIMEOUT=%d, retry count 7).",
			needed, duration(reach.Seconds()), duration(longest.Seconds()), needed)
	case ackTimeout(n) <= longest:
		p.say(Act, "timers", "A local ACK timeout of %d is %s, and an acknowledgement takes up to %s: whole windows would be sent twice; set it to %d (%s; NCCL_IB_TIMEOUT=%d).",
			n, duration(ackTimeout(n).Seconds()), duration(longest.Seconds()), needed, duration(reach.Seconds()), needed)
	case n > needed+2:
		p.say(Note, "timers", "A local ACK timeout of %d is %s; %d (%s) is enough, and makes a lost last acknowledgement %.0f times cheaper.", n, duration(ackTimeout(n).Seconds()), needed, duration(reach.Seconds()), float64(ackTimeout(n))/float64(reach))
	default:
		p.say(Fine, "timers", "A local ACK timeout of %d (%s) leaves an acknowledgement the %s that it may take.", n, duration(ackTimeout(n).Seconds()), duration(longest.Seconds()))
	}
}

// findHold says how long packets can wait for order, and what follows.
func (p *Plan) findHold() {
	in := &p.Input
	if in.delivery() == crf.Immediate {
		p.say(Fine, "hold", "The receiver takes packets in any order, so nothing is held.")
		return
	}
	all, _ := in.hold(p.chosen.maxHold)
	can, bound := in.longestHold(p.chosen.maxHold), size(float64(all))
	if p.chosen.crem.Rounds == 0 {
		flows := math.Ceil(float64(in.Flows) * in.holdFor(1).Seconds() / can.Seconds())
		p.say(Note, "hold", "At %s a queue pair the %s that an agent holds for one flow are full after %s, less than a round trip: a loss beyond the repair symbols makes the sender go back, so the profile keeps that rare; with %.0f queue pairs, or more --memory, there is time for a coded retransmission.",
			rateText(in.rate()), bound, duration(can.Seconds()), flows)
		return
	}
	p.say(Fine, "hold", "Packets can wait %s before the %s that an agent holds for one flow are full; maxHold %s leaves time for %d %s of retransmission.",
		duration(min(can, mostHold).Seconds()), bound, p.chosen.maxHold, p.chosen.crem.Rounds, plural(p.chosen.crem.Rounds, "round"))
}

func (p *Plan) findMemory() {
	m := p.Memory
	level, does := Fine, "the default of crem-agent run is enough"
	switch {
	case p.Input.Memory > 0:
		level, does = Note, fmt.Sprintf("the agents have %s", size(float64(p.Input.Memory)))
	case m.Limit != "1Gi":
		level, does = Act, "start both agents with --memory "+m.Limit
	}
	if m.Worker > 0 {
		does += fmt.Sprintf(" (a packet worker needs %s, of which one flow may take half)", size(m.Worker))
	}
	p.say(level, "memory", "A full link takes %s at the sending gateway, until packets are acknowledged, and %s at the receiving one: %s.", size(m.Sender), size(m.Receiver), does)
}

// largeLoss is where a smaller RDMA MTU is worth a try.
const largeLoss = 1e-3

func (p *Plan) findSize() {
	if p.Input.Loss >= largeLoss && p.Input.RDMAMTU > 1024 {
		p.say(Note, "packet size", "Where loss comes from the line, it grows with the size of packets: measure it at an RDMA MTU of 1024 too.")
	}
}

// floor is the shortest time that is shown.
const floor = 1e-6

// duration shows seconds with three digits.
func duration(s float64) string {
	switch {
	case s < floor:
		return "0"
	case s < 1e-3:
		return fmt.Sprintf("%.3g us", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.3g ms", s*1e3)
	case s < 1000:
		return fmt.Sprintf("%.3g s", s)
	}
	return time.Duration(s * float64(time.Second)).Round(time.Minute).String()
}

// percent shows a share with two digits.
func percent(f float64) string {
	if f >= 0.1 {
		return fmt.Sprintf("%.0f %%", 100*f)
	}
	return fmt.Sprintf("%.2g %%", 100*f)
}

// share shows a share that may be tiny.
func share(f float64) string {
	if f != 0 && f < 1e-5 {
		return fmt.Sprintf("%.1e", f)
	}
	return percent(f)
}

// size shows octets in powers of 1024.
func size(n float64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.3g GiB", n/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.3g MiB", n/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.3g KiB", n/(1<<10))
	}
	return fmt.Sprintf("%.0f octets", n)
}

// rateText shows bits per second.
func rateText(r float64) string {
	if r >= 1e9 {
		return fmt.Sprintf("%.3g Gbit/s", r/1e9)
	}
	return fmt.Sprintf("%.3g Mbit/s", r/1e6)
}

// times says how many times better.
func times(gain float64) string {
	if gain < 1 {
		return fmt.Sprintf("%.2g times worse", 1/gain)
	}
	return fmt.Sprintf("%.3g times better", gain)
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// capital begins a sentence.
func capital(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}
