// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"crem.dev/crem/agent/node"
	"crem.dev/crem/agent/probe"
	"crem.dev/crem/internal/render"
)

func newProbe() *cobra.Command {
	var (
		files, uplinks []string
		output, pinDir string
	)
	cmd := &cobra.Command{
		Use:   "probe [-f FILE ...] [--uplink NAME ...]",
		Short: "Says what this node can do, and what it can not",
		Long: `Says what this kernel, this processor and the rights of this process allow the agent to do: kernel features,
capabilities, uplinks, and which RDMA MTUs fit them. Nothing is changed. Exit code 0 when everything required works,
else 1.`,
		Example: `  crem-agent probe -f domain.yaml
  crem-agent probe --uplink wan0 -o json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return usageError{fmt.Errorf("-o %q: write text or json", output)}
			}
			o := probe.Options{Uplinks: uplinks, PinDir: pinDir}
			if err := addDomains(&o, files); err != nil {
				return err
			}
			if api, err := rest.InClusterConfig(); err == nil { // else nothing is known of an API server
				o.Management = node.APIServer(api)()
			}
			report := probe.Run(o)
			if err := printReport(cmd, report, output); err != nil {
				return err
			}
			if !report.OK {
				return errFailed
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&files, "filename", "f", nil, "file or directory of CREMDomain and CREMProfile documents, whose uplinks are looked at")
	f.StringArrayVar(&uplinks, "uplink", nil, "interface to look at as an uplink; may be given several times")
	f.StringVarP(&output, "output", "o", "text", "text or json")
	f.StringVar(&pinDir, "pin-dir", defaultPinDir, "folder on a BPF file system where programs and maps would be pinned")
	return cmd
}

// addDomains takes uplinks, prefixes of other sites and the largest block from files.
func addDomains(o *probe.Options, paths []string) error {
	files, err := node.ReadFiles(paths)
	if err != nil {
		return &node.InputError{Err: err}
	}
	objs, err := render.Decode(files)
	if err != nil {
		return &node.InputError{Err: err}
	}
	spec := render.Node(objs, render.NodeFacts{Standalone: true}).Spec
	for _, p := range spec.Profiles {
		o.K = max(o.K, int(p.K))
	}
	for _, d := range spec.Domains {
		o.Tunnels = o.Tunnels || d.WAN != nil
		for _, name := range d.Uplinks {
			o.Uplinks = append(o.Uplinks, string(name))
		}
		for _, site := range d.Sites {
			if site.Name == d.Site {
				continue
			}
			for _, c := range site.CIDRs {
				if p, err := netip.ParsePrefix(string(c)); err == nil {
					o.Remote = append(o.Remote, p)
				}
			}
		}
	}
	return nil
}

func printReport(cmd *cobra.Command, r *probe.Report, output string) error {
	if output == "text" {
		return r.Text(cmd.OutOrStdout())
	}
	enc := json.NewEncoder(cmd.OutOrStdout())
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
