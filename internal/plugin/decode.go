// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/internal/decode"
)

func (p *program) decode() *cobra.Command {
	var port, veroce uint16
	var mrc bool
	cmd := &cobra.Command{
		Use:   "decode FILE.pcap",
		Short: "Prints the RoCEv2 packets and CREM messages of a capture",
		Long: `Prints the RoCEv2 packets and, with --port, the CREM messages of a capture, one line each: flow, PSN, opcode, whether the
invariant CRC is right, and why CREM would not protect a packet if it would not. Reads pcap and pcapng, also gzipped; -
reads the standard input. CREM has no default port: give the spec.port of the domain. Packets of veRoCE and MRC are printed
when they are asked for; flags are the bits of BTH octet 8 that RoCEv2 leaves zero.`,
		Example: `  kubectl crem decode wan.pcap --port 52000
  kubectl crem decode wan.pcap --port 52000 --veroce-port 4794 --mrc
  tcpdump -i wan0 -w - udp | kubectl crem decode - --port 52000 -o json`,
		Args: arguments(1, 1, "a capture"),
	}
	output := outputFlag(cmd, "table", "json")
	cmd.Flags().Uint16Var(&port, "port", 0, "CREM port of the domain; without it RDMA transports only")
	cmd.Flags().Uint16Var(&veroce, "veroce-port", 0, "UDP port of veRoCE; without it none")
	cmd.Flags().BoolVar(&mrc, "mrc", false, "read the opcodes of MRC, which RoCEv2 leaves to manufacturers")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		in := p.in
		if args[0] != "-" {
			f, err := os.Open(args[0])
			if err != nil {
				return usageError{fmt.Errorf("%w: name a file that tcpdump -w wrote", err)}
			}
			defer func() { _ = f.Close() }()
			in = f
		}
		transports := &roce.Transports{
			VeRoCE: roce.VeRoCESettings{Enabled: veroce != 0, Port: veroce}, MRC: roce.MRCSettings{Enabled: mrc},
		}
		return decodeCapture(cmd, in, decode.Options{Port: port, Transports: transports, JSON: format == "json"})
	}
	return cmd
}

func decodeCapture(cmd *cobra.Command, in io.Reader, o decode.Options) error {
	summary, err := decode.Capture(cmd.OutOrStdout(), in, o)
	if _, werr := fmt.Fprintln(cmd.ErrOrStderr(), summary); werr != nil {
		return werr
	}
	return err
}
