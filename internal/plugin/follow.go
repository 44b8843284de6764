// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// settle is how long things must rest before they are shown again.
const settle = 500 * time.Millisecond

// watchFlag adds the flag that has something shown again.
func watchFlag(cmd *cobra.Command, follow *bool) {
	cmd.Flags().BoolVarP(follow, "watch", "w", false, "show it again whenever it changes")
}

// repeat shows what an agent says once or, to follow, looks every second and shows it again when it reads otherwise: an agent does not tell of changes.
func (p *program) repeat(ctx context.Context, follow bool, out io.Writer, show func(context.Context, io.Writer) error) error {
	if !follow {
		return show(ctx, out)
	}
	var last []byte
	for {
		var text bytes.Buffer
		if err := show(ctx, &text); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if !bytes.Equal(text.Bytes(), last) {
			if err := clearScreen(out, last == nil); err != nil {
				return err
			}
			if _, err := out.Write(text.Bytes()); err != nil {
				return fmt.Errorf("write: %w", err)
			}
			last = text.Bytes()
		}
		p.sleep(ctx, time.Second)
		if ctx.Err() != nil {
			return nil
		}
	}
}

// clearScreen makes room for what is shown again.
func clearScreen(out io.Writer, first bool) error {
	if first || !terminal(out) {
		return nil
	}
	_, err := io.WriteString(out, "\x1b[H\x1b[2J")
	return err
}

// show shows once or, to follow, again after each change of the kinds of lists.
func (p *program) show(ctx context.Context, kube client.WithWatch, follow bool, out io.Writer, show func(context.Context) error, lists ...client.ObjectList) error {
	if !follow {
		return show(ctx)
	}
	changed := make(chan struct{}, 1)
	ended := make(chan error, len(lists))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, list := range lists {
		go func() { ended <- p.notice(ctx, kube, list, changed) }()
	}
	for first := true; ; first = false {
		if err := clearScreen(out, first); err != nil {
			return err
		}
		if err := show(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		p.sleep(ctx, settle)
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case <-changed:
		}
	}
}

// notice tells when something of a kind changes, until ctx ends. A watch that the server ends, as it does now and then, begins again.
func (p *program) notice(ctx context.Context, kube client.WithWatch, list client.ObjectList, changed chan<- struct{}) error {
	for ctx.Err() == nil {
		w, err := kube.Watch(ctx, list)
		if err != nil {
			return unreachable(err)
		}
		for range w.ResultChan() {
			select {
			case changed <- struct{}{}:
			default: // one is waiting already
			}
		}
		w.Stop()
		p.sleep(ctx, settle)
	}
	return nil
}
