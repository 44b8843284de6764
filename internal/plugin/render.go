// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/render"
)

// renderedNode is the CREMNode that would be applied: without the status, which only an agent can know.
type renderedNode struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec v1alpha1.CREMNodeSpec `json:"spec"`
}

func (p *program) render() *cobra.Command {
	var (
		paths        []string
		name, labelz string
	)
	cmd := &cobra.Command{
		Use:   "render -f FILE [-f FILE ...]",
		Short: "Checks files and shows what a node would be told",
		Long: `Checks CREMDomain and CREMProfile documents as strictly as the API server does, and shows the CREMNode that they make
for one node: which domains, which rules in which order, every default filled in. What keeps an object from being in
force is said on the error output, and the exit code is then 1; it is 2 when a document is wrong.

Without --labels the node is one that runs without Kubernetes and takes part in every domain. With --labels it is a
node of a cluster with these labels.`,
		Example: `  kubectl crem render -f domain.yaml -f profiles.yaml
  kubectl crem render -f . --node gw1 --labels crem.dev/gateway=
  kustomize build overlays/east | kubectl crem render -f -`,
		Args: arguments(0, 0, ""),
	}
	output := outputFlag(cmd, "yaml", "json", "table", "wide")
	cmd.Flags().StringArrayVarP(&paths, "filename", "f", nil, "file or directory of documents, - for standard input; may be given several times (required)")
	cmd.Flags().StringVar(&name, "node", "node", "name of the node")
	cmd.Flags().StringVar(&labelz, "labels", "", "labels of the node, as key=value,...")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		facts := render.NodeFacts{Name: name, Standalone: !cmd.Flags().Changed("labels")}
		set, err := labels.ConvertSelectorToLabelsMap(labelz)
		if err != nil {
			return usageError{fmt.Errorf("--labels %q: write key=value pairs with commas between: %w", labelz, err)}
		}
		facts.Labels = set
		files, err := p.files(paths)
		if err != nil {
			return err
		}
		objs, err := render.Decode(files)
		if err != nil {
			return err
		}
		result := render.Node(objs, facts)
		if err := printNode(cmd.OutOrStdout(), format, name, &result); err != nil {
			return err
		}
		for _, problem := range result.Problems {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s (%s): %s\n", problem.Object, problem.Reason, problem.Message)
		}
		if len(result.Problems) > 0 {
			return errSaid
		}
		return nil
	}
	return cmd
}

// files reads what -f names.
func (p *program) files(paths []string) ([]render.File, error) {
	if len(paths) == 0 {
		return nil, usageError{fmt.Errorf("no file is given: name files of CREMDomain and CREMProfile documents with -f, or - for standard input")}
	}
	var files []render.File
	for _, path := range paths {
		if path == "-" {
			data, err := io.ReadAll(p.in)
			if err != nil {
				return nil, fmt.Errorf("read the standard input: %w", err)
			}
			files = append(files, render.File{Name: "standard input", Data: data})
			continue
		}
		names := []string{path}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			names = names[:0]
			for _, pattern := range []string{"*.yaml", "*.yml", "*.json"} {
				found, err := filepath.Glob(filepath.Join(path, pattern))
				if err != nil {
					return nil, fmt.Errorf("list %s: %w", path, err)
				}
				names = append(names, found...)
			}
			slices.Sort(names)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				return nil, usageError{fmt.Errorf("%w: name a file of CREMDomain and CREMProfile documents", err)}
			}
			files = append(files, render.File{Name: name, Data: data})
		}
	}
	return files, nil
}

func printNode(out io.Writer, format, name string, r *render.Result) error {
	node := renderedNode{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindNode}, Spec: r.Spec}
	node.Metadata.Name = name
	switch format {
	case "json":
		return writeJSON(out, node)
	case "yaml":
		raw, err := yaml.Marshal(node)
		if err != nil {
			return err
		}
		_, err = out.Write(raw)
		return err
	}
	if len(r.Spec.Domains) == 0 {
		_, err := fmt.Fprintln(out, "No domain: the node protects nothing.")
		return err
	}
	head := []string{"DOMAIN", "RULE", "PROFILE", "SOURCE", "TO"}
	if format == "wide" {
		head = append(head, "K", "MAX M", "EPSILON", "DELIVERY", "MAX HOLD", "STRATEGY", "TRANSPORTS")
	}
	rows := [][]string{head}
	profiles := map[v1alpha1.ObjectName]*v1alpha1.NodeProfile{}
	for i := range r.Spec.Profiles {
		profiles[r.Spec.Profiles[i].Name] = &r.Spec.Profiles[i]
	}
	for _, d := range r.Spec.Domains {
		for i, rule := range d.Rules {
			row := []string{string(d.Name), fmt.Sprint(i + 1), string(rule.Profile), sourceText(rule), list(rule.DestinationSites, "every other site")}
			if pr := profiles[rule.Profile]; format == "wide" && pr != nil {
				row = append(row, fmt.Sprint(pr.K), fmt.Sprint(pr.MaxRepairSymbols), pr.Epsilon, string(pr.Delivery), milliseconds(float64(pr.MaxHoldMicroseconds)/1e6), string(pr.RepairStrategy), transportsText(d.Transports))
			}
			rows = append(rows, row)
		}
		if len(d.Rules) == 0 {
			rows = append(rows, []string{string(d.Name), "-", "none: no flow is protected"})
		}
	}
	return table(out, rows)
}

func transportsText(t *v1alpha1.Transports) string {
	names := []string{"RoCEv2"}
	if t != nil && t.VeRoCE != nil {
		names = append(names, fmt.Sprintf("veRoCE (port %d)", *t.VeRoCE.Port))
	}
	if t != nil && t.MRC != nil {
		names = append(names, "MRC")
	}
	return strings.Join(names, ", ")
}

func sourceText(r v1alpha1.NodeRule) string {
	switch r.Source {
	case v1alpha1.SourcePods:
		return strings.TrimSpace("selected pods " + list(r.CIDRs, ""))
	case v1alpha1.SourceCIDRs:
		return list(r.CIDRs, "")
	case v1alpha1.SourceAny:
		return "any"
	}
	return string(r.Source)
}

func list[T ~string](items []T, empty string) string {
	if len(items) == 0 {
		return empty
	}
	words := make([]string, len(items))
	for i, item := range items {
		words[i] = string(item)
	}
	return strings.Join(words, ",")
}
