// SPDX-License-Identifier: Apache-2.0

// Package installation looks after an installation in a cluster: Verify says whether all of it works, Uninstall takes it off the nodes. The
// chart runs both, as its test and as its hook before deletion.
package installation

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"crem.dev/crem/api/v1alpha1"
)

// Commands are the commands verify and uninstall.
func Commands() []*cobra.Command { return []*cobra.Command{newVerify(), newUninstall()} }

func newVerify() *cobra.Command {
	var namespace string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Says whether every agent reports and every domain is ready",
		Long: `Waits until every agent reports, every node is ready and every domain and profile is in force, and says what is missing
when the time is over. Exit code 0 when all is well, else 1. It only reads.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := connect()
			if err != nil {
				return err
			}
			return Verify(cmd.Context(), c, namespace, timeout, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&namespace, "namespace", "crem-system", "namespace of the operator, in which agents keep their Leases")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	return cmd
}

func newUninstall() *cobra.Command {
	o := UninstallOptions{}
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Stops agents and operator and takes what they left off the nodes",
		Long: `Stops the operator and the agents, removes their programs, pins and files from every node that ran an agent, and deletes
CREMNode and CREMEndpointSlice objects and the agents' Leases. CREMDomains and CREMProfiles stay: they are yours.
Traffic passes before, during and after.

It ends within --deadline whatever the nodes do, and names those that it did not reach. What is missing already is no
error, so it can run again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Deadline < time.Second {
				return errors.New("--deadline: write at least 1s")
			}
			c, err := connect()
			if err != nil {
				return err
			}
			Uninstall(cmd.Context(), c, o, cmd.OutOrStdout())
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Namespace, "namespace", "crem-system", "namespace of operator and agents")
	f.StringVar(&o.DaemonSet, "daemonset", "crem-agent", "DaemonSet of the agents")
	f.StringVar(&o.Deployment, "deployment", "crem-operator", "Deployment of the operator")
	f.DurationVar(&o.Deadline, "deadline", 90*time.Second, "the longest that it may take")
	return cmd
}

// connect uses the pod's service account, or else the kubeconfig of the person.
func connect() (client.Client, error) {
	cfg, err := rest.InClusterConfig()
	if err != nil {
		cfg, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("there is no way to the API server: run in a pod with a service account, or set KUBECONFIG: %w", err)
	}
	cfg.QPS, cfg.Burst = 200, 400
	log.SetLogger(logr.Discard()) // what is to be said goes to the standard output; without this the library complains after half a minute
	types := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(types), v1alpha1.AddToScheme(types)); err != nil {
		return nil, fmt.Errorf("know the kinds: %w", err)
	}
	c, err := client.New(cfg, client.Options{Scheme: types})
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	return c, nil
}
