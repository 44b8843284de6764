// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"crem.dev/crem/internal/agentapi"
)

// filter chooses flows.
type filter struct {
	domain, role string
	unprotected  bool
}

func (f *filter) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.domain, "domain", "", "only flows of this CREMDomain")
	cmd.Flags().StringVar(&f.role, "role", "", "only leaving flows (csf) or arriving ones (crf)")
	cmd.Flags().BoolVar(&f.unprotected, "unprotected", false, "only leaving flows that are not protected")
}

func (f *filter) apply(flows []agentapi.Flow) ([]agentapi.Flow, error) {
	if f.role != "" && f.role != "csf" && f.role != "crf" {
		return nil, usageError{fmt.Errorf("--role %q: write csf for leaving flows or crf for arriving ones", f.role)}
	}
	out := []agentapi.Flow{}
	for _, flow := range flows {
		if (f.domain == "" || flow.Domain == f.domain) && (f.role == "" || flow.Role == f.role) && (!f.unprotected || !protected(&flow) && flow.Role == "csf") {
			out = append(out, flow)
		}
	}
	return out, nil
}

// protected says whether losses of the flow are repaired.
func protected(f *agentapi.Flow) bool { return f.State == "Protecting" }

func (p *program) flows() *cobra.Command {
	var (
		which  filter
		follow bool
	)
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "Lists the RDMA flows of a node",
		Long: `Lists the RDMA flows that this node protects (role csf: they leave by an uplink) and restores (role crf: they arrive by
one). A queue pair has a flow for its requests and one for its responses. LOSS is before restoration.`,
		Example: `  kubectl crem flows
  kubectl crem flows --unprotected -o wide
  kubectl crem flows --node gw1 --domain backbone
  kubectl crem flows --unprotected --watch
  kubectl crem flows -o json | jq '.[].loss'`,
		Args: arguments(0, 0, ""),
	}
	where, output := p.agentFlags(cmd), outputFlag(cmd, "table", "wide", "json")
	which.add(cmd)
	watchFlag(cmd, &follow)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		client, err := where.agent(cmd.Context())
		if err != nil {
			return err
		}
		show := func(ctx context.Context, out io.Writer) error {
			flows, err := client.Flows(ctx)
			if err != nil {
				return err
			}
			if flows, err = which.apply(flows); err != nil {
				return err
			}
			if format == "json" {
				return writeJSON(out, flows)
			}
			if len(flows) == 0 {
				_, err := fmt.Fprintln(out, "No flow. kubectl crem explain node says what this node does.")
				return err
			}
			return table(out, flowRows(flows, format == "wide"))
		}
		return p.repeat(cmd.Context(), follow, cmd.OutOrStdout(), show)
	}
	return cmd
}

func flowRows(flows []agentapi.Flow, wide bool) [][]string {
	head := []string{"ROLE", "SOURCE", "DESTINATION", "QPN", "TRANSPORT", "SPACE", "DOMAIN", "PROFILE", "STATE", "K", "M", "LOSS", "RESTORED"}
	if wide {
		head = append(head, "SCHEME", "T", "SRTT", "SOURCES", "OVERHEAD", "HELD", "PEER", "FLOW", "WORKER", "WHY")
	}
	rows := [][]string{head}
	for i := range flows {
		f := &flows[i]
		row := []string{f.Role, f.Source, f.Destination, fmt.Sprintf("0x%06x", f.QPN), f.Transport, f.Space, orDash(f.Domain), orDash(f.Profile), f.State,
			number(f.K), strconv.Itoa(f.M), share(f.Loss), count(float64(f.Restored))}
		if !protected(f) {
			row[9], row[10] = "-", "-"
		}
		if wide {
			row = append(row, orDash(f.Scheme), number(f.T), milliseconds(f.SRTT), count(float64(f.SourcePackets)), share(ratio(float64(f.RepairOctets), float64(f.SourceOctets))),
				count(float64(f.Held)), orDash(f.Peer), fmt.Sprintf("0x%08x", f.FlowID), strconv.Itoa(f.Worker), orDash(f.Why))
		}
		rows = append(rows, row)
	}
	return rows
}

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}
