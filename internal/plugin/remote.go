// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/internal/agentclient"
)

// agentContainer is the agent's container in its pod.
const agentContainer = "agent"

// agentPods are the labels of the agents' pods.
var agentPods = client.MatchingLabels{"app.kubernetes.io/name": "crem", "app.kubernetes.io/component": "agent"}

// where says whose agent to ask: this node's by its socket, or another's through the API server.
type where struct {
	socket  string
	node    string
	cluster *cluster
}

// agentFlags adds the flags that say which agent to ask.
func (p *program) agentFlags(cmd *cobra.Command) *where {
	w := &where{cluster: clusterFlags(cmd)}
	cmd.Flags().StringVar(&w.socket, "socket", agentapi.DefaultSocket, "Unix socket of this node's agent")
	cmd.Flags().StringVar(&w.node, "node", "", "ask the agent of this node of a cluster, through its pod, instead of a socket here")
	_ = cmd.RegisterFlagCompletionFunc("node", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) { // the flag exists
		return p.nodeNames(cmd.Context(), w.cluster), cobra.ShellCompDirectiveNoFileComp
	})
	return w
}

// nodeNames lists the nodes that take part, for the shell's completion.
func (p *program) nodeNames(ctx context.Context, c *cluster) []string {
	kube, err := c.client()
	if err != nil {
		return nil
	}
	states, err := readNodes(ctx, kube, c.namespace, p.now())
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(states))
	for i := range states {
		names = append(names, states[i].Name)
	}
	return names
}

// agent gives a client of the chosen agent.
func (w *where) agent(ctx context.Context) (*agentclient.Client, error) {
	if w.node == "" {
		return agentclient.New(w.socket), nil
	}
	config, err := w.cluster.config()
	if err != nil {
		return nil, err
	}
	kube, err := client.New(config, client.Options{Scheme: scheme()})
	if err != nil {
		return nil, unreachable(err)
	}
	pod, err := findAgent(ctx, kube, w.cluster.namespace, w.node)
	if err != nil {
		return nil, err
	}
	executor, err := newExecutor(config, pod)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context) (net.Conn, error) { return dialPod(ctx, executor), nil }
	return agentclient.NewDialer("of the agent on node "+w.node, dial), nil
}

// findAgent finds the pod of a node's agent.
func findAgent(ctx context.Context, kube client.Client, namespace, node string) (*corev1.Pod, error) {
	var pods corev1.PodList
	err := kube.List(ctx, &pods, client.InNamespace(namespace), agentPods, client.MatchingFields{"spec.nodeName": node})
	if err != nil {
		return nil, unreachable(err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			return p, nil
		}
	}
	if len(pods.Items) > 0 {
		p := &pods.Items[0]
		return nil, fmt.Errorf("the agent's pod %s on node %s is %s: kubectl -n %s describe pod %s says why", p.Name, node, p.Status.Phase, namespace, p.Name)
	}
	return nil, fmt.Errorf("no agent runs on node %s in namespace %s: see its tolerations and the DaemonSet crem-agent, or name another namespace with -n", node, namespace)
}

// newExecutor runs the agent's own bridge from standard input and output to its socket. The image has no other program.
func newExecutor(config *rest.Config, pod *corev1.Pod) (remotecommand.Executor, error) {
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, unreachable(err)
	}
	request := set.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		Param("container", agentContainer).Param("command", "/crem-agent").Param("command", "socket").
		Param("stdin", "true").Param("stdout", "true").Param("stderr", "false").Param("tty", "false")
	spdy, err := remotecommand.NewSPDYExecutor(config, "POST", request.URL())
	if err != nil {
		return nil, unreachable(err)
	}
	websocket, err := remotecommand.NewWebSocketExecutor(config, "GET", request.URL().String())
	if err != nil {
		return nil, unreachable(err)
	}
	return remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// dialPod opens a connection to the socket in the pod. What goes wrong on the way comes out of the connection's Read.
func dialPod(ctx context.Context, executor remotecommand.Executor) net.Conn {
	here, there := net.Pipe()
	answers, sink := io.Pipe()
	go func() {
		err := executor.StreamWithContext(context.WithoutCancel(ctx), remotecommand.StreamOptions{Stdin: there, Stdout: sink})
		if err == nil {
			err = io.EOF
		}
		_ = sink.CloseWithError(unreachable(errors.Join(errors.New("run crem-agent socket in the agent's pod"), err)))
		_ = there.Close()
	}()
	return &podConn{Conn: here, answers: answers}
}

// podConn reads what the pod answers and writes what it is asked.
type podConn struct {
	net.Conn
	answers *io.PipeReader
}

func (c *podConn) Read(b []byte) (int, error) { return c.answers.Read(b) }

func (c *podConn) Close() error {
	return errors.Join(c.answers.Close(), c.Conn.Close())
}
