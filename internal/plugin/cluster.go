// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
)

// defaultNamespace is where the chart and the kustomization put the operator and the agents.
const defaultNamespace = "crem-system"

// cluster is one Kubernetes cluster, as kubectl's flags name it.
type cluster struct {
	kubeconfig, context, namespace string
}

// clusterFlags adds the flags that say which cluster.
func clusterFlags(cmd *cobra.Command) *cluster {
	c := &cluster{}
	cmd.Flags().StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig file (default: $KUBECONFIG, ~/.kube/config, or the pod's service account)")
	cmd.Flags().StringVar(&c.context, "context", "", "context of the kubeconfig (default: its current one)")
	cmd.Flags().StringVarP(&c.namespace, "namespace", "n", defaultNamespace, "namespace of CREM's operator and agents")
	_ = cmd.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) { // the flag exists
		return c.contexts(), cobra.ShellCompDirectiveNoFileComp
	})
	return c
}

// contexts lists those of the kubeconfig, for the shell's completion.
func (c *cluster) contexts() []string {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	config, err := rules.Load()
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(config.Contexts))
}

func (c *cluster) config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no cluster to ask: %w: name one with --kubeconfig and --context, or ask an agent on its own node with --socket", err)
	}
	config.UserAgent = "kubectl-crem"
	return config, nil
}

// scheme has the kinds that are read.
func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(s))
	utilruntime.Must(corev1.AddToScheme(s))
	utilruntime.Must(coordinationv1.AddToScheme(s))
	return s
}

func (c *cluster) client() (client.WithWatch, error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	kube, err := client.NewWithWatch(config, client.Options{Scheme: scheme()})
	if err != nil {
		return nil, unreachable(err)
	}
	return kube, nil
}

// unreachable says what to do about an error of the API server.
func unreachable(err error) error {
	switch {
	case err == nil:
		return nil
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err) && isKind(err):
		return fmt.Errorf("this cluster does not know CREM's resources: install the chart crem-crds, or choose another cluster with --context: %w", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("this user may not read that: %w: bind the ClusterRole crem-viewer", err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the cluster does not know this user: %w: log in again, or choose another with --kubeconfig and --context", err)
	case errors.Is(err, context.Canceled):
		return err
	}
	return fmt.Errorf("ask the API server: %w", err)
}

// isKind says whether what was not found is the kind itself, not an object of it.
func isKind(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details == nil || details.Name == ""
}
