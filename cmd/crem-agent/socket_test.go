// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"crem.dev/crem/agent/local"
	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/internal/agentclient"
)

// quiet is an agent without flows.
type quiet struct{}

func (quiet) Status(bool) (agentapi.Status, []agentapi.Flow) {
	return agentapi.Status{Node: "gw1", Version: "v1"}, nil
}
func (quiet) Unready() []string { return nil }

// TestSocketCarriesTheClient: what kubectl-crem asks through a pod's standard input and output reaches the agent, several questions on one connection.
func TestSocketCarriesTheClient(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	ln, err := local.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- local.Serve(ctx, ln, local.Handler(quiet{})) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	connections := 0
	client := agentclient.NewDialer("of gw1", func(context.Context) (net.Conn, error) {
		connections++
		here, there := net.Pipe()
		go func() {
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Error(err)
				return
			}
			_ = join(conn.(*net.UnixConn), there, there)
			_ = there.Close()
		}()
		return here, nil
	})
	for range 3 {
		status, err := client.Status(ctx)
		if err != nil || status.Node != "gw1" {
			t.Fatal(status, err)
		}
		if flows, err := client.Flows(ctx); err != nil || len(flows) != 0 {
			t.Fatal(flows, err)
		}
	}
	if connections != 1 {
		t.Errorf("%d connections for six questions", connections)
	}
}

// TestSocketSaysWhatIsWrong: without an agent the program ends with a sentence.
func TestSocketSaysWhatIsWrong(t *testing.T) {
	cmd := newSocket()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetIn(strings.NewReader(""))
	cmd.SetArgs([]string{"--socket", filepath.Join(t.TempDir(), "none.sock")})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "does it run here") {
		t.Error(err)
	}
}
