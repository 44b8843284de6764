// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/internal/agentclient"
)

// sample is one reading of a node.
type sample struct {
	at     time.Time
	status agentapi.Status
	flows  []agentapi.Flow
}

// topFlow is one flow with its rates.
type topFlow struct {
	ID              string  `json:"id"`
	Domain          string  `json:"domain"`
	State           string  `json:"state"`
	M               int     `json:"m"`
	Loss            float64 `json:"loss"`
	PacketsPerSec   float64 `json:"packetsPerSecond"`
	BitsPerSec      float64 `json:"bitsPerSecond"`
	RepairPerSec    float64 `json:"repairPacketsPerSecond"`
	Overhead        float64 `json:"overhead"` // repair octets over source octets
	RestoredPerSec  float64 `json:"restoredPerSecond"`
	octetsPerSecond float64
}

// topNode is a node between two samples.
type topNode struct {
	Node           string             `json:"node"`
	Seconds        float64            `json:"seconds"` // between the samples
	Flows          agentapi.FlowCount `json:"flows"`
	Memory         agentapi.Memory    `json:"memory"`
	SentPerSec     float64            `json:"sentPacketsPerSecond"`
	ReceivedPerSec float64            `json:"receivedPacketsPerSecond"`
	LostPerSec     float64            `json:"lostPerSecond"` // before restoration
	RestoredPerSec float64            `json:"restoredPerSecond"`
	GivenUpPerSec  float64            `json:"givenUpPerSecond"`
	Overhead       float64            `json:"overhead"`
	Heartbeat      float64            `json:"worstHeartbeatSeconds"`
	Realtime       bool               `json:"realtime"` // all packet workers run before ordinary programs
	Top            []topFlow          `json:"top"`
}

func (p *program) top() *cobra.Command {
	var (
		interval time.Duration
		once     bool
		most     int
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Shows rates of a node and its busiest flows, refreshed",
		Long: `Shows what a node protects and restores at present, and its busiest flows. Rates are between two readings. LOST is
before restoration; what is neither restored nor given up is still being repaired.`,
		Example: `  kubectl crem top
  kubectl crem top --once --interval 5s
  kubectl crem top --node gw1
  kubectl crem top -o json`,
		Args: arguments(0, 0, ""),
	}
	where, output := p.agentFlags(cmd), outputFlag(cmd, "table", "wide", "json")
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "time between readings, from 100ms to 1h")
	cmd.Flags().BoolVar(&once, "once", false, "print one table and end")
	cmd.Flags().IntVar(&most, "flows", 20, "most flows to show")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		if interval < 100*time.Millisecond || interval > time.Hour {
			return usageError{fmt.Errorf("--interval %v: write a time from 100ms to 1h", interval)}
		}
		if most < 1 {
			return usageError{fmt.Errorf("--flows %d: write at least 1", most)}
		}
		client, err := where.agent(cmd.Context())
		if err != nil {
			return err
		}
		return p.watch(cmd.Context(), client, cmd.OutOrStdout(), format, interval, once || format == "json", most)
	}
	return cmd
}

// watch reads and prints until ctx ends.
func (p *program) watch(ctx context.Context, client *agentclient.Client, out io.Writer, format string, interval time.Duration, once bool, most int) error {
	before, err := p.read(ctx, client)
	if err != nil {
		return err
	}
	for {
		p.sleep(ctx, interval)
		if ctx.Err() != nil {
			return nil
		}
		after, err := p.read(ctx, client)
		if err != nil {
			return err
		}
		n := between(before, after, most)
		before = after
		if format == "json" {
			return writeJSON(out, n)
		}
		if err := clearScreen(out, once); err != nil {
			return err
		}
		if err := n.print(out, format == "wide"); err != nil || once {
			return err
		}
	}
}

func (p *program) read(ctx context.Context, client *agentclient.Client) (sample, error) {
	s := sample{at: p.now()}
	var err error
	if s.status, err = client.Status(ctx); err != nil {
		return s, err
	}
	s.flows, err = client.Flows(ctx)
	return s, err
}

// terminal says whether out is one, and so can be cleared.
func terminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// between makes rates of two samples. A counter that went back, because the agent was started again, gives a rate of 0.
func between(a, b sample, most int) topNode {
	seconds := b.at.Sub(a.at).Seconds()
	rate := func(x, y uint64) float64 {
		if y < x || seconds <= 0 {
			return 0
		}
		return float64(y-x) / seconds
	}
	counter := func(name string) float64 { return rate(a.status.Counters[name], b.status.Counters[name]) }
	n := topNode{
		Node: b.status.Node, Seconds: seconds, Flows: b.status.Flows, Memory: b.status.Memory,
		SentPerSec: counter("csf_source_packets"), ReceivedPerSec: counter("crf_sources"), LostPerSec: counter("crf_lost"),
		RestoredPerSec: counter("crf_restored"), GivenUpPerSec: counter("crf_given_up"),
		Overhead: ratio(counter("csf_repair_octets"), counter("csf_source_octets")), Top: []topFlow{},
	}
	n.Realtime = len(b.status.Workers) > 0
	for _, w := range b.status.Workers {
		n.Heartbeat = max(n.Heartbeat, w.LastBeatAge)
		n.Realtime = n.Realtime && w.Realtime
	}
	old := map[string]*agentapi.Flow{}
	for i := range a.flows {
		old[a.flows[i].ID] = &a.flows[i]
	}
	for i := range b.flows {
		f, was := &b.flows[i], old[b.flows[i].ID]
		if was == nil {
			was = &agentapi.Flow{} // it began between the samples
		}
		t := topFlow{
			ID: f.ID, Domain: f.Domain, State: f.State, M: f.M, Loss: f.Loss,
			PacketsPerSec: rate(was.SourcePackets, f.SourcePackets), octetsPerSecond: rate(was.SourceOctets, f.SourceOctets),
			RepairPerSec: rate(was.RepairPackets, f.RepairPackets), RestoredPerSec: rate(was.Restored, f.Restored),
		}
		t.BitsPerSec = 8 * t.octetsPerSecond
		t.Overhead = ratio(rate(was.RepairOctets, f.RepairOctets), t.octetsPerSecond)
		n.Top = append(n.Top, t)
	}
	slices.SortStableFunc(n.Top, func(x, y topFlow) int {
		return cmp.Or(cmp.Compare(y.octetsPerSecond, x.octetsPerSecond), cmp.Compare(y.PacketsPerSec, x.PacketsPerSec), cmp.Compare(x.ID, y.ID))
	})
	n.Top = n.Top[:min(len(n.Top), most)]
	return n
}

func (n *topNode) print(out io.Writer, wide bool) error {
	realtime := "no"
	if n.Realtime {
		realtime = "yes"
	}
	if _, err := fmt.Fprintf(out, "%s  flows %d leaving (%d protected), %d arriving  memory %s of %s, %s held  heartbeat %s  realtime %s\n", n.Node, n.Flows.Sending,
		n.Flows.Protected, n.Flows.Receiving, octets(n.Memory.InUse), octets(n.Memory.Limit), octets(n.Memory.Held), milliseconds(n.Heartbeat), realtime); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "sent %s/s  overhead %s  received %s/s  lost %s/s  restored %s/s  given up %s/s\n\n",
		count(n.SentPerSec), share(n.Overhead), count(n.ReceivedPerSec), count(n.LostPerSec), count(n.RestoredPerSec), count(n.GivenUpPerSec)); err != nil {
		return err
	}
	head := []string{"FLOW", "STATE", "M", "LOSS", "PACKETS/S", "RATE", "RESTORED/S"}
	if wide {
		head = append(head, "REPAIR/S", "OVERHEAD", "DOMAIN")
	}
	rows := [][]string{head}
	for _, f := range n.Top {
		row := []string{f.ID, f.State, strconv.Itoa(f.M), share(f.Loss), count(f.PacketsPerSec), bits(f.octetsPerSecond), count(f.RestoredPerSec)}
		if wide {
			row = append(row, count(f.RepairPerSec), share(f.Overhead), orDash(f.Domain))
		}
		rows = append(rows, row)
	}
	return table(out, rows)
}
