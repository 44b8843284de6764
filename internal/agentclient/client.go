// SPDX-License-Identifier: Apache-2.0

// Package agentclient reads what an agent says about itself on its local socket.
package agentclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"crem.dev/crem/internal/agentapi"
)

// Client reads from one socket.
type Client struct {
	socket string
	http   http.Client
}

// New makes a client of the socket at path. Nothing is opened before the first call.
func New(path string) *Client {
	return NewDialer(path, func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", path) })
}

// NewDialer makes a client of a socket that dial reaches, wherever it is. name stands for it in errors.
func NewDialer(name string, dial func(context.Context) (net.Conn, error)) *Client {
	connect := func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	return &Client{socket: name, http: http.Client{Transport: &http.Transport{DialContext: connect}, Timeout: 10 * time.Second}}
}

// Status reads the node's status.
func (c *Client) Status(ctx context.Context) (agentapi.Status, error) {
	var s agentapi.Status
	return s, c.get(ctx, agentapi.PathStatus, &s)
}

// Flows reads all flows, sorted by ID.
func (c *Client) Flows(ctx context.Context) ([]agentapi.Flow, error) {
	var flows []agentapi.Flow
	return flows, c.get(ctx, agentapi.PathFlows, &flows)
}

// Flow reads one flow by its ID.
func (c *Client) Flow(ctx context.Context, id string) (agentapi.Flow, error) {
	var f agentapi.Flow
	return f, c.get(ctx, agentapi.PathFlows+"/"+strings.TrimPrefix(id, "/"), &f)
}

// get reads one answer. Its errors say what to do.
func (c *Client) get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", path, err)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		var e agentapi.Error
		if json.NewDecoder(res.Body).Decode(&e) == nil && e.Message != "" {
			return errors.New(e.Message)
		}
		return fmt.Errorf("the agent answered %s: is it of the same version as this program?", res.Status)
	}
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		return fmt.Errorf("the agent's answer can not be read: %w; is it of the same version as this program?", err)
	}
	return nil
}

func (c *Client) unreachable(err error) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("socket %s belongs to another user: run this as root", c.socket)
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("there is no socket %s: is crem-agent running on this node? Name its socket with --socket", c.socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no agent listens on %s: it has stopped; start it with crem-agent run", c.socket)
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err):
		return fmt.Errorf("the agent on %s does not answer: look at its log", c.socket)
	}
	return fmt.Errorf("ask the agent on %s: %w", c.socket, err)
}
