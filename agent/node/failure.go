// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"

	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/api/v1alpha1"
)

// failureReason is the documented reason for a configuration that the data path could not take up at all.
func failureReason(err error) string {
	switch {
	case errors.Is(err, bpf.ErrPermission), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return v1alpha1.ReasonMissingCapability
	case errors.Is(err, bpf.ErrUnsupported):
		return v1alpha1.ReasonKernelUnsupported
	}
	return v1alpha1.ReasonAttachFailed
}
