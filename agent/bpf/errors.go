// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Classes of errors, for errors.Is.
var (
	// ErrPermission: a capability is missing.
	ErrPermission = errors.New("not permitted")
	// ErrUnsupported: the kernel lacks something.
	ErrUnsupported = errors.New("not supported by this kernel")
	// ErrNoBPFFS: the pin folder is not on a BPF file system.
	ErrNoBPFFS = errors.New("not a BPF file system")
	// ErrBusy: another agent holds the pin folder.
	ErrBusy = errors.New("in use by another agent")
	// ErrOrphanProgram: a program of ours that no pin leads to is on the hook and can't be taken over.
	ErrOrphanProgram = errors.New("a CREM program without a pin is attached")
	// ErrFlowExists and ErrFlowTableFull answer RegisterFlow.
	ErrFlowExists    = errors.New("flow is registered already")
	ErrFlowTableFull = errors.New("flow table is full")
)

// Error says what failed and what to do about it.
type Error struct {
	Op    string // what was tried
	Class error  // one of the classes, or nil
	Hint  string // what to do, a sentence
	Err   error  // the cause
}

func (e *Error) Error() string {
	s := "bpf: " + e.Op
	if e.Class != nil {
		s += ": " + e.Class.Error()
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap gives class and cause to errors.Is and errors.As.
func (e *Error) Unwrap() []error { return []error{e.Class, e.Err} }

// explain gives an error of the kernel its class and hint.
func explain(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	e := &Error{Op: fmt.Sprintf(format, args...), Err: err}
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, fs.ErrPermission):
		e.Class = ErrPermission
		e.Hint = "the agent needs the capabilities BPF and NET_ADMIN"
	case errors.Is(err, link.ErrNotSupported), errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.ENOSYS):
		e.Class = ErrUnsupported
		e.Hint = "TCX needs Linux 6.6 or later with CONFIG_BPF_SYSCALL and CONFIG_NET_XGRESS"
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.E2BIG):
		e.Hint = "use smaller rings or fewer workers"
	}
	return e
}
