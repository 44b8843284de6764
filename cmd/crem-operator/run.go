// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"crem.dev/crem/controllers"
	"crem.dev/crem/internal/served"
	"crem.dev/crem/internal/version"
)

// serviceAccountNamespace is where a pod finds the name of its own namespace.
const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// runOptions are the flags of run.
type runOptions struct {
	kubeconfig     string
	namespace      string
	metricsAddr    string
	healthAddr     string
	leaderElection bool
	collectAfter   time.Duration
	logFormat      string
	verbosity      int
}

func newRun() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Works until it is stopped",
		Long: `Works until SIGTERM or SIGINT. Of several, one works and the others wait for its lease, which it gives back when it is
stopped. When the custom resource definitions are missing it says so and waits for them. When they are older than this
operator it says which fields they lack, and works without those; when others come it ends, to be started anew.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(); err != nil {
				return usageError{err}
			}
			return run(cmd.Context(), &o, cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "file that says how to reach the API server (default: the pod's service account, else $KUBECONFIG)")
	f.StringVar(&o.namespace, "namespace", "", "namespace of the operator, in which agents keep their Leases (default: $POD_NAMESPACE, else the pod's own)")
	f.StringVar(&o.metricsAddr, "metrics-addr", ":9465", "address of /metrics; empty: none")
	f.StringVar(&o.healthAddr, "health-addr", ":9466", "address of /healthz and /readyz; empty: none")
	f.BoolVar(&o.leaderElection, "leader-elect", true, "work only while holding the lease crem-operator, so that several may run")
	f.DurationVar(&o.collectAfter, "collect-after", controllers.Defaults("").CollectAfter, "how long the CREMNode of a node that is gone, or that no domain chooses any more, stays; 0: for ever")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.CountVarP(&o.verbosity, "verbose", "v", "log more; twice for debugging")
	return cmd
}

// complete checks the flags and fills in what they leave open.
func (o *runOptions) complete() error {
	if o.namespace == "" {
		o.namespace = os.Getenv("POD_NAMESPACE")
	}
	if o.namespace == "" {
		name, err := os.ReadFile(serviceAccountNamespace)
		if err != nil {
			return errors.New("the namespace of the operator is not known: name it with --namespace")
		}
		o.namespace = strings.TrimSpace(string(name))
	}
	if faults := validation.IsDNS1123Label(o.namespace); len(faults) > 0 {
		return fmt.Errorf("--namespace %q is no name of a namespace: %s", o.namespace, faults[0])
	}
	if o.collectAfter < 0 {
		return fmt.Errorf("--collect-after %s: write a time such as 30m, or 0 to keep them for ever", o.collectAfter)
	}
	if o.logFormat != "text" && o.logFormat != "json" {
		return fmt.Errorf("--log-format %q: write text or json", o.logFormat)
	}
	return nil
}

// logger logs to w as the flags say. A message of V(n) has slog's level -n.
func (o *runOptions) logger(w io.Writer) logr.Logger {
	opts := &slog.HandlerOptions{Level: slog.Level(-o.verbosity)}
	if o.logFormat == "json" {
		return logr.FromSlogHandler(slog.NewJSONHandler(w, opts))
	}
	return logr.FromSlogHandler(slog.NewTextHandler(w, opts))
}

// connection says how to reach the API server.
func (o *runOptions) connection() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	var cfg *rest.Config
	var err error
	if o.kubeconfig == "" {
		if cfg, err = rest.InClusterConfig(); err != nil {
			cfg = nil
		}
	}
	if cfg == nil {
		cfg, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("there is no way to the API server: name a kubeconfig with --kubeconfig, or run in a pod with a service account: %w", err)
	}
	cfg.UserAgent = "crem-operator/" + version.Version
	// A changed profile writes one object for each node. The API server itself says when that is too fast (priority and fairness).
	cfg.QPS, cfg.Burst = 1000, 2000
	return cfg, nil
}

// run works until a signal.
func run(ctx context.Context, o *runOptions, logTo io.Writer) error {
	log := o.logger(logTo)
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	cfg, err := o.connection()
	if err != nil {
		return err
	}
	health, err := serveHealth(o.healthAddr)
	if err != nil {
		return err
	}
	defer health.close()
	log.Info("Operator started", "version", version.Version, "namespace", o.namespace)
	api, err := describer(cfg)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	fields := waitForCRDs(ctx, log, api, health)
	if fields == nil {
		return nil // stopped before they came
	}
	sayMissing(log, fields)
	ctx, stopLeading := context.WithCancel(ctx)
	defer stopLeading()
	go func() {
		untilOthers(ctx, log, api, fields, otherPeriod)
		stopLeading()
	}()
	return lead(ctx, o, cfg, fields, log, health)
}

// lead runs the manager. Its context's end stops it, with the lease given back.
func lead(ctx context.Context, o *runOptions, cfg *rest.Config, fields *served.Fields, log logr.Logger, health *healthServer) error {
	options := controllers.Defaults(o.namespace)
	options.CollectAfter, options.Served = o.collectAfter, fields
	warm := true
	grace := 20 * time.Second
	managerOptions := ctrl.Options{
		Scheme:                        controllers.Scheme(),
		Cache:                         controllers.CacheOptions(options),
		Metrics:                       metricsserver.Options{BindAddress: orNone(o.metricsAddr)},
		HealthProbeBindAddress:        "0", // served from before the manager starts
		LeaderElection:                o.leaderElection,
		LeaderElectionID:              "crem-operator",
		LeaderElectionNamespace:       o.namespace,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       &grace,
		Logger:                        log,
	}
	managerOptions.Controller.EnableWarmup = &warm // a standby has full caches
	mgr, err := ctrl.NewManager(cfg, managerOptions)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if err := controllers.Add(mgr, options); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	go func() {
		if mgr.GetCache().WaitForCacheSync(ctx) {
			health.set("")
		}
	}()
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("stopped: %w", err)
	}
	log.Info("Operator stopped")
	return nil
}

// orNone gives the address, or what means none to the manager.
func orNone(addr string) string {
	if addr == "" {
		return "0"
	}
	return addr
}
