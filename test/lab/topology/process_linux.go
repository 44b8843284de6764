// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"crem.dev/crem/test/lab/raw"
)

// Process is a program that runs in a namespace of a lab.
type Process struct {
	Name   string
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr tail
	done   chan struct{}
	err    error
}

// tail keeps the end of what is written to it, and tells when a line of it ends with a word.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailOctets = 8 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if len(t.text) > tailOctets {
		t.text = append(t.text[:0], t.text[len(t.text)-tailOctets:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// Start runs a program in a namespace. It ends at the latest with the lab, and with this process however that ends.
func (l *Lab) Start(n *Namespace, name string, args ...string) (*Process, error) {
	p := &Process{Name: fmt.Sprintf("%s in %s", strings.TrimSuffix(name[strings.LastIndexByte(name, '/')+1:], " "), n.Name), done: make(chan struct{})}
	p.cmd = raw.Software(name, args...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.WaitDelay = time.Second
	// A group of its own: the terminal's interrupt goes to the lab, which stops its programs in order. The death signal follows the namespace's thread.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.interrupted {
		return nil, errors.New("the lab was interrupted")
	}
	if err := n.Do(p.cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	l.processes = append(l.processes, p)
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Ready waits until the program says on its error output what is given, as in "ready".
func (p *Process) Ready(word string, timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		if strings.Contains(p.stderr.String(), word) {
			return nil
		}
		select {
		case <-p.done:
			return p.failure("ended before it was ready")
		default:
		}
		if time.Now().After(deadline) {
			return p.failure(fmt.Sprintf("was not ready after %v", timeout))
		}
	}
}

// failure says what went wrong with the program's own last words.
func (p *Process) failure(what string) error {
	words := strings.TrimSpace(p.stderr.String())
	if lines := strings.Split(words, "\n"); len(lines) > 12 {
		words = strings.Join(lines[len(lines)-12:], "\n")
	}
	return fmt.Errorf("%s %s: %s", p.Name, what, words)
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the program to end by itself and returns its output.
func (p *Process) Wait(timeout time.Duration) ([]byte, error) {
	select {
	case <-p.done:
	case <-time.After(timeout):
		p.Kill()
		return nil, p.failure(fmt.Sprintf("did not end within %v", timeout))
	}
	if p.err != nil {
		return nil, p.failure(p.err.Error())
	}
	return p.stdout.Bytes(), nil
}

// Stop asks the program to end, waits, and returns its output. One that does not end in time is killed.
func (p *Process) Stop(timeout time.Duration) ([]byte, error) {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return nil, err
	}
	return p.Wait(timeout)
}

// Kill ends the program at once and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Said returns the end of the program's error output so far.
func (p *Process) Said() string { return p.stderr.String() }

// Pid returns the process number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }
