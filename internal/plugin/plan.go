// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/plan"
	"crem.dev/crem/internal/render"
)

// planFlags is the question as it is written on the command line.
type planFlags struct {
	rtt                                          time.Duration
	bandwidth, loss, message, window, memory, to string
	burst                                        float64
	transport                                    string
	mtu, rdmaMTU, tunnel, flows, timeout         int
	ipv6, losslessBack                           bool

	site, domain string // of --from-status
	messages     int
	most         time.Duration
}

func (p *program) plan() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan --rtt TIME --bandwidth RATE --loss SHARE --message SIZE",
		Short: "Recommends a profile for a link, and says what to expect of it",
		Long: `Says what RDMA does over a link, with and without CREM, and recommends the CREMProfile that makes the best of it: expected
completion of a message (mean, p50, p99, p99.9) against other mechanisms, overhead, memory at both gateways, whether MTU,
NIC timers and windows are large enough, and where something else is better. Nothing is asked of a cluster, except with
--from-status, which takes round-trip time, loss and flows from what a running domain reports of a site.

Numbers come from exact distributions; CREM also runs through a simulator with the real machines of both gateways, for
--time at most. Progress goes to the error output; Ctrl-C gives what there is. docs/plan.md explains every number.`,
		Example: `  kubectl crem plan --rtt 25ms --bandwidth 400G --loss 1e-4 --message 128Mi --mtu 9000
  kubectl crem plan --rtt 30ms --bandwidth 100G --loss 0.1% --message 64Mi --flows 16 --ack-timeout 20 -o html >plan.html
  kubectl crem plan --from-status west --bandwidth 100G --message 1Gi -o yaml | kubectl apply -f -`,
		Args: arguments(0, 0, ""),
	}
	where, output := clusterFlags(cmd), outputFlag(cmd, "text", "yaml", "json", "html")
	f.define(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		in, says, err := f.input(cmd, where)
		if err != nil {
			return err
		}
		if says != "" {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), says)
		}
		made := plan.Make(in)
		if format == "yaml" {
			_, err := io.WriteString(cmd.OutOrStdout(), made.YAML)
			return err
		}
		if err := p.simulate(cmd, made, &f); err != nil {
			return err
		}
		switch format {
		case "json":
			return writeJSON(cmd.OutOrStdout(), made)
		case "html":
			line := p.progress(cmd.ErrOrStderr())
			survey := made.Survey(func(done, all int) bool {
				line.show("compare mechanisms: %d of %d points", done, all)
				return cmd.Context().Err() == nil
			})
			line.clear()
			return made.HTML(cmd.OutOrStdout(), survey)
		}
		return made.Text(cmd.OutOrStdout())
	}
	return cmd
}

// define adds the flags.
func (f *planFlags) define(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.DurationVar(&f.rtt, "rtt", 0, "round-trip time between the sites, for instance 25ms")
	flags.StringVar(&f.bandwidth, "bandwidth", "", "rate of the link in bits per second, with or without k, M, G or T")
	flags.StringVar(&f.loss, "loss", "", "share of packets that the link loses, for instance 1e-4 or 0.01%")
	flags.BoolVar(&f.losslessBack, "lossless-back", false, "acknowledgements are never lost, as in published models")
	flags.Float64Var(&f.burst, "burst", 1, "mean number of packets lost in a row; 1: losses are independent")
	flags.StringVar(&f.message, "message", "", "size of one message in octets, with or without Ki, Mi or Gi")
	flags.StringVar(&f.transport, "transport", string(plan.GoBackN), "how the NICs recover by themselves: go-back-n, selective-repeat (NACK), selective-repeat-timer, mrc or veroce")
	flags.IntVar(&f.flows, "flows", 1, "queue pairs that share the link")
	flags.IntVar(&f.mtu, "mtu", 0, "IP MTU of the link; 0: the plan says which is needed")
	flags.IntVar(&f.rdmaMTU, "rdma-mtu", 0, "octets of data in an RDMA packet; 0: the largest that fits the link")
	flags.BoolVar(&f.ipv6, "ipv6", false, "the flows and the gateways use IPv6")
	flags.IntVar(&f.tunnel, "tunnel", 0, "octets that a tunnel (GRE, UDP, ESP) adds to each packet on the link")
	flags.IntVar(&f.timeout, "ack-timeout", 0, "exponent n of the NICs' local ACK timeout of 4.096 us times 2^n (NCCL_IB_TIMEOUT); 0: not known")
	flags.StringVar(&f.window, "window", "", "octets that a queue pair keeps in flight at most, with or without Ki, Mi or Gi; empty: not known")
	flags.StringVar(&f.memory, "memory", "", "what crem-agent run --memory is given at both gateways, in octets or with Ki, Mi or Gi; empty: the plan says what it takes")
	flags.StringVar(&f.to, "to", "", "name of the other site, for the profile's selector")
	flags.StringVar(&f.site, "from-status", "", "take round-trip time, loss and flows from what a running domain reports of this site")
	flags.StringVar(&f.domain, "domain", "", "domain of --from-status, where several have the site")
	flags.IntVar(&f.messages, "messages", -1, "messages to simulate: 0 for none, -1 for as many as take a moment; p99.9 needs 1000")
	flags.DurationVar(&f.most, "time", time.Minute, "end the simulation after this time, with what there is")
	transports := make([]string, len(plan.Transports))
	for i, t := range plan.Transports {
		transports[i] = string(t)
	}
	_ = cmd.RegisterFlagCompletionFunc("transport", cobra.FixedCompletions(transports, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	_ = cmd.RegisterFlagCompletionFunc("rdma-mtu", cobra.FixedCompletions([]string{"1024", "2048", "4096"}, cobra.ShellCompDirectiveNoFileComp))
}

// input makes the question of the flags. What was taken from a cluster is said.
func (f *planFlags) input(cmd *cobra.Command, where *cluster) (in plan.Input, says string, err error) {
	in = plan.Input{
		RTT: f.rtt, Burst: f.burst, Transport: plan.Transport(f.transport), Flows: f.flows, LinkMTU: f.mtu, RDMAMTU: f.rdmaMTU, IPv6: f.ipv6,
		Tunnel: f.tunnel, AckTimeout: f.timeout, Site: cmp.Or(f.to, f.site), LosslessBack: f.losslessBack,
	}
	if in.Site != "" && !render.SiteName(in.Site) {
		return in, "", usageError{fmt.Errorf("--to %q: write the name of a site: lower-case letters, digits and '-'", in.Site)}
	}
	if f.site != "" {
		if says, err = f.fromStatus(cmd, where, &in); err != nil {
			return in, "", err
		}
	}
	for _, missing := range []struct {
		name  string
		given bool
		says  string
	}{
		{"rtt", in.RTT != 0, "the round-trip time between the sites, for instance --rtt 25ms"},
		{"bandwidth", f.bandwidth != "", "the rate of the link, for instance --bandwidth 100G"},
		{"loss", f.loss != "" || f.site != "", "the share of packets that the link loses, for instance --loss 1e-4"},
		{"message", f.message != "", "the size of one message, for instance --message 128Mi"},
	} {
		if !missing.given {
			return in, "", usageError{fmt.Errorf("--%s is missing: write %s", missing.name, missing.says)}
		}
	}
	var ok bool
	if in.Bandwidth, ok = render.BitRate(f.bandwidth); !ok {
		return in, "", usageError{fmt.Errorf("--bandwidth %q: write a whole number of bits per second with or without k, M, G or T, for instance 100G", f.bandwidth)}
	}
	if in.Message, ok = render.Octets(f.message); !ok {
		return in, "", usageError{fmt.Errorf("--message %q: write a whole number of octets with or without Ki, Mi or Gi, for instance 128Mi", f.message)}
	}
	if f.window != "" {
		if in.Window, ok = render.Octets(f.window); !ok {
			return in, "", usageError{fmt.Errorf("--window %q: write a whole number of octets with or without Ki, Mi or Gi, for instance 64Mi", f.window)}
		}
	}
	if f.memory != "" {
		if in.Memory, ok = render.Octets(f.memory); !ok {
			return in, "", usageError{fmt.Errorf("--memory %q: write a whole number of octets with or without Ki, Mi or Gi, for instance 4Gi", f.memory)}
		}
	}
	if f.loss != "" {
		if in.Loss, ok = parseShare(f.loss); !ok {
			return in, "", usageError{fmt.Errorf("--loss %q: write the share of packets that the link loses, for instance 1e-4 or 0.01%%", f.loss)}
		}
	}
	if f.messages < -1 || f.messages > 1e6 {
		return in, "", usageError{fmt.Errorf("--messages %d: write how many messages to simulate, from 0 to 1000000, or -1", f.messages)}
	}
	if in, err = in.Normal(); err != nil {
		return in, "", usageError{fmt.Errorf("--%w", err)}
	}
	return in, says, nil
}

// parseShare reads a fraction, or a percentage with its sign.
func parseShare(s string) (float64, bool) {
	number, isPercent := strings.CutSuffix(s, "%")
	f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if isPercent {
		f /= 100
	}
	return f, err == nil
}

// lossOf is what a class of loss is taken for: its upper border, or 5 % for the class without one.
var lossOf = map[v1alpha1.LossClass]float64{
	v1alpha1.LossNone: 1e-5, v1alpha1.LossLow: 1e-3, v1alpha1.LossMedium: 2e-2, v1alpha1.LossHigh: 5e-2,
}

// fromStatus fills in what a domain reports of a site and no flag says.
func (f *planFlags) fromStatus(cmd *cobra.Command, where *cluster, in *plan.Input) (string, error) {
	kube, err := where.client()
	if err != nil {
		return "", err
	}
	var domains v1alpha1.CREMDomainList
	if err := kube.List(cmd.Context(), &domains); err != nil {
		return "", unreachable(err)
	}
	name, site, err := findSite(domains.Items, f.domain, f.site)
	if err != nil {
		return "", err
	}
	if !cmd.Flags().Changed("rtt") {
		in.RTT = time.Duration(site.RTTMilliseconds) * time.Millisecond
	}
	if !cmd.Flags().Changed("flows") {
		in.Flows = max(int(site.Flows), 1)
	}
	loss, known := lossOf[site.Loss]
	if !known && f.loss == "" {
		return "", fmt.Errorf("domain %s has no loss of site %s yet: wait for traffic, or write --loss", name, f.site)
	}
	in.Loss = loss
	return fmt.Sprintf("Domain %s reports of site %s: %d flows, loss %s (reckoned with %g; --loss says it better), round trip %d ms.",
		name, f.site, site.Flows, strings.ToLower(string(site.Loss)), loss, site.RTTMilliseconds), nil
}

// findSite finds what a domain reports of a site.
func findSite(domains []v1alpha1.CREMDomain, domain, site string) (name string, found *v1alpha1.SiteHealth, err error) {
	for i := range domains {
		d := &domains[i]
		if domain != "" && d.Name != domain {
			continue
		}
		for j := range d.Status.Sites {
			if s := &d.Status.Sites[j]; string(s.Name) == site {
				if found != nil {
					return "", nil, usageError{fmt.Errorf("domains %s and %s both have a site %s: choose one with --domain", name, d.Name, site)}
				}
				name, found = d.Name, s
			}
		}
	}
	if found == nil {
		return "", nil, fmt.Errorf("no domain reports anything of a site %s: kubectl crem status -o wide shows the sites; write --rtt and --loss instead", site)
	}
	return name, found, nil
}

// simulate runs CREM through the simulator, until it is done, its time is up, or the user has had enough.
func (p *program) simulate(cmd *cobra.Command, made *plan.Plan, f *planFlags) error {
	messages := f.messages
	if messages < 0 {
		messages = made.Messages()
	}
	if messages == 0 {
		return nil
	}
	s, err := made.Simulate(messages)
	if err != nil {
		return err
	}
	line, end := p.progress(cmd.ErrOrStderr()), p.now().Add(f.most)
	for s.Step() && cmd.Context().Err() == nil && p.now().Before(end) {
		done, all := s.Progress()
		line.show("simulate CREM: %d of %d messages", done, all)
	}
	line.clear()
	s.Finish()
	if errors.Is(cmd.Context().Err(), context.Canceled) {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "Ended early; this is what there is.")
	}
	return nil
}

// How often progress is shown: on a terminal in one line, else now and then.
const (
	progressEvery = 200 * time.Millisecond
	progressLines = 10 * time.Second
)

// progressLine tells on the error output how far a long run is.
type progressLine struct {
	out      io.Writer
	now      func() time.Time
	last     time.Time
	terminal bool
}

func (p *program) progress(out io.Writer) *progressLine {
	return &progressLine{out: out, now: p.now, last: p.now(), terminal: terminal(out)}
}

func (l *progressLine) show(format string, args ...any) {
	every, begin, end := progressLines, "", "\n"
	if l.terminal {
		every, begin, end = progressEvery, "\r\x1b[K", ""
	}
	if now := l.now(); now.Sub(l.last) >= every {
		l.last = now
		_, _ = fmt.Fprint(l.out, begin, fmt.Sprintf(format, args...), end)
	}
}

func (l *progressLine) clear() {
	if l.terminal {
		_, _ = io.WriteString(l.out, "\r\x1b[K")
	}
}
