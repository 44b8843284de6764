// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"crem.dev/crem/agent/engine"
	"crem.dev/crem/agent/local"
	"crem.dev/crem/agent/metrics"
	"crem.dev/crem/agent/node"
	"crem.dev/crem/agent/probe"
	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/internal/render"
	"crem.dev/crem/internal/version"
)

const (
	defaultPinDir   = "/sys/fs/bpf/crem"
	defaultStateDir = "/var/lib/crem"
)

// runOptions are the flags of run.
type runOptions struct {
	files       []string
	kubeconfig  string
	namespace   string
	stateDir    string
	node        string
	nodeLabels  string
	socket      string
	metricsAddr string
	workers     int
	realtime    bool
	memory      string
	pinDir      string
	logFormat   string
	verbosity   int

	pinDirGiven bool
	memoryBytes int64
	labels      map[string]string
	api         *rest.Config // nil: files say what to do
}

// agent is what keeps the data path together with what it should do.
type agent interface {
	metrics.Source
	Run(ctx context.Context, reload <-chan struct{}) error
	Notice()
	Drifted(found []string)
}

func newRun() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [-f FILE ...]",
		Short: "Protects traffic until it is stopped",
		Long: `Protects the traffic of this node until SIGTERM or SIGINT. Running flows are reconfigured without losing a packet.

With -f it does what the CREMDomain and CREMProfile documents of the files say, and needs no Kubernetes. Files are read
again when they change and at SIGHUP. A changed file that is wrong changes nothing; the log says what is wrong with it.

Without -f, in a pod or with --kubeconfig, it does what the CREMNode named as this node says, and reports in its status.
What it did last is kept in --state-dir and done first at the next start, so that the node is protected whether or not
the API server answers. SIGHUP applies it again.

At the end nothing is detached: the programs on the uplinks stay and pass every packet, so that the next agent takes
them over without a gap. crem-agent uninstall removes them.`,
		Example: `  crem-agent run -f domain.yaml -f profiles.yaml --node gw1
  crem-agent run -f /etc/crem --log-format json
  crem-agent run --kubeconfig /etc/crem/kubeconfig --node gw1`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.pinDirGiven = cmd.Flags().Changed("pin-dir")
			if err := o.complete(); err != nil {
				return usageError{err}
			}
			return run(cmd.Context(), &o, cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "filename", "f", nil, "file of CREMDomain and CREMProfile documents, or directory of such files; may be given several times. Without it: the CREMNode of this node")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "file that says how to reach the API server (default: the service account of the pod)")
	f.StringVar(&o.namespace, "namespace", "", "namespace of this agent's Lease (default: that of the pod, else crem-system)")
	f.StringVar(&o.stateDir, "state-dir", defaultStateDir, "folder where the last good configuration from the API server is kept")
	f.StringVar(&o.node, "node", "", "name of this node, as in Kubernetes (default: the environment variable NODE_NAME, else the host name)")
	f.StringVar(&o.nodeLabels, "node-labels", "", "with -f: labels of this node, as key=value,...: with them it takes part only in domains whose selector chooses it; without, in all")
	f.StringVar(&o.socket, "socket", agentapi.DefaultSocket, "Unix socket for kubectl-crem")
	f.StringVar(&o.metricsAddr, "metrics-addr", "127.0.0.1:9464", "address of /metrics, /healthz and /readyz; empty: none")
	f.IntVar(&o.workers, "workers", 0, "packet workers (default: one per processor)")
	f.BoolVar(&o.realtime, "realtime", true, "run the agent before ordinary programs, so that its packet workers are not kept waiting; needs the capability SYS_NICE, without it it runs as all others do")
	f.StringVar(&o.memory, "memory", "1Gi", "most memory for packets and symbols, in octets or with Ki, Mi or Gi")
	f.StringVar(&o.pinDir, "pin-dir", defaultPinDir, "folder on a BPF file system where programs and maps outlive the agent; empty: they end with it")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.CountVarP(&o.verbosity, "verbose", "v", "log more; twice for debugging")
	return cmd
}

// complete checks the flags and fills in what they leave open.
func (o *runOptions) complete() error {
	if err := o.completeCluster(); err != nil {
		return err
	}
	if o.node == "" {
		o.node = os.Getenv("NODE_NAME")
	}
	if o.node == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("the host name is not known: name this node with --node: %w", err)
		}
		o.node = name
	}
	set, err := labels.ConvertSelectorToLabelsMap(o.nodeLabels)
	if err != nil {
		return fmt.Errorf("--node-labels %q: write key=value pairs with commas between: %w", o.nodeLabels, err)
	}
	o.labels = set
	if o.workers < 0 || o.workers > 256 {
		return fmt.Errorf("--workers %d: write a number from 1 to 256, or 0 for one per processor", o.workers)
	}
	n, ok := render.Octets(o.memory)
	if !ok || n < 16<<20 {
		return fmt.Errorf("--memory %q: write at least 16Mi, a whole number of octets with or without Ki, Mi or Gi", o.memory)
	}
	o.memoryBytes = n
	if o.logFormat != "text" && o.logFormat != "json" {
		return fmt.Errorf("--log-format %q: write text or json", o.logFormat)
	}
	return nil
}

// podFolder is where the kubelet puts the service account of a pod.
const podFolder = "/var/run/secrets/kubernetes.io/serviceaccount"

// completeCluster finds the API server when there are no files.
func (o *runOptions) completeCluster() error {
	if len(o.files) > 0 {
		if o.kubeconfig != "" {
			return errors.New("-f and --kubeconfig exclude each other: either files say what to do, or the API server")
		}
		return nil
	}
	var err error
	if o.kubeconfig != "" {
		if o.api, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig); err != nil {
			return fmt.Errorf("--kubeconfig %s: %w", o.kubeconfig, err)
		}
	} else if o.api, err = rest.InClusterConfig(); err != nil {
		return errors.New("no file is given with -f, and this is no pod of a cluster: name the files of CREMDomain and CREMProfile documents, or a cluster with --kubeconfig")
	}
	if o.nodeLabels != "" {
		return errors.New("--node-labels is for files: in a cluster the operator knows the labels of the node")
	}
	if o.namespace == "" {
		o.namespace = "crem-system"
		if raw, err := os.ReadFile(podFolder + "/namespace"); err == nil {
			o.namespace = strings.TrimSpace(string(raw))
		}
	}
	if o.stateDir == "" {
		return errors.New("--state-dir is empty: name a folder that outlives restarts of this agent")
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

// pins gives the pin folder. The default one is used where it can be.
func (o *runOptions) pins(log logr.Logger) string {
	if o.pinDirGiven || o.pinDir == "" {
		return o.pinDir
	}
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/bpf", &st); err == nil && st.Type == unix.BPF_FS_MAGIC {
		return o.pinDir
	}
	log.Info("No BPF file system on /sys/fs/bpf, programs end with this agent; mount -t bpf bpf /sys/fs/bpf keeps them over a restart")
	return ""
}

// run wires the parts together and works until a signal.
func run(ctx context.Context, o *runOptions, logTo io.Writer) error {
	log := o.logger(logTo)
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	hangups, reload := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(hangups, unix.SIGHUP)
	defer signal.Stop(hangups)

	socket, err := local.Listen(o.socket)
	if err != nil {
		return err
	}
	var a agent
	pinDir := o.pins(log)
	backend := &engine.Linux{PinDir: pinDir}
	if o.api != nil {
		backend.Management = node.APIServer(o.api)
	}
	eng := engine.New(engine.Options{
		Node: o.node, Version: version.Version, Workers: o.workers, Memory: o.memoryBytes, Realtime: o.realtime,
		Backend: backend, Changed: func() { a.Notice() },
		Notice: func(text string) { log.Info(text) }, Drift: func(found []string) { a.Drifted(found) },
	})
	if a, err = o.newAgent(eng, pinDir, log); err != nil {
		return errors.Join(err, socket.Close())
	}
	servers, err := o.serve(ctx, socket, a)
	if err != nil {
		return errors.Join(err, socket.Close())
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangups:
				select {
				case reload <- struct{}{}:
				case <-ctx.Done():
				}
			}
		}
	}()
	log.Info("Agent starts", "version", version.Version, "node", o.node, "socket", o.socket, "metrics", o.metricsAddr)
	err = a.Run(ctx, reload)
	stop()
	servers(log)
	if err == nil {
		log.Info("Agent stopped, packets pass unprotected")
	}
	return err
}

// newAgent makes the agent for files or for a cluster.
func (o *runOptions) newAgent(path node.DataPath, pinDir string, log logr.Logger) (agent, error) {
	if o.api == nil {
		return node.New(node.Files{Paths: o.files, Facts: render.NodeFacts{Name: o.node, Labels: o.labels, Standalone: true}}, path, log), nil
	}
	return node.NewCluster(node.ClusterOptions{
		Node: o.node, Namespace: o.namespace, Version: version.Version, StateDir: o.stateDir, API: o.api, Path: path, Log: log,
		Probe: func() *probe.Report { return probe.Run(probe.Options{PinDir: pinDir}) },
	})
}

// serve starts the local socket and the metrics address. The function that it gives waits for their end, which ctx brings.
func (o *runOptions) serve(ctx context.Context, socket net.Listener, a agent) (func(logr.Logger), error) {
	reg := prometheus.NewRegistry()
	if err := metrics.Register(reg, a); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	errs := make(chan error, 2)
	if o.metricsAddr != "" {
		ln, err := net.Listen("tcp", o.metricsAddr)
		if err != nil {
			cancel()
			return nil, fmt.Errorf("metrics address: %w: name another with --metrics-addr", err)
		}
		health := local.Health(a, promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
		running.Go(func() { errs <- local.Serve(ctx, ln, health) })
	}
	running.Go(func() { errs <- local.Serve(ctx, socket, local.Handler(a)) })
	return func(log logr.Logger) {
		cancel()
		running.Wait()
		close(errs)
		for err := range errs {
			if err != nil {
				log.Error(err, "Server failed")
			}
		}
	}, nil
}
