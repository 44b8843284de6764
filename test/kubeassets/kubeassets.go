// SPDX-License-Identifier: Apache-2.0

// Package kubeassets finds a real kube-apiserver and etcd for tests.
package kubeassets

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Missing says what to do when the programs are not there.
const Missing = "no kube-apiserver and etcd for tests: run test/lab/kube/kube.sh build kube-apiserver etcd kubectl, or set KUBEBUILDER_ASSETS"

// ErrMissing means that a test can not run here. A test skips with it, unless Required.
var ErrMissing = errors.New(Missing)

// Required says that tests without the programs must fail, as they should where they are known to be.
func Required() bool { return os.Getenv("CREM_REQUIRE_ENVTEST") == "1" }

// Dir gives the folder of kube-apiserver, etcd and kubectl: KUBEBUILDER_ASSETS, or where test/lab/kube/kube.sh builds them.
func Dir() (string, error) {
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		cache := os.Getenv("CREM_KUBE_CACHE")
		if cache == "" {
			user, err := os.UserCacheDir()
			if err != nil {
				return "", ErrMissing
			}
			cache = filepath.Join(user, "crem", "kube")
		}
		dir = filepath.Join(cache, "bin")
	}
	for _, program := range []string{"kube-apiserver", "etcd"} {
		if info, err := os.Stat(filepath.Join(dir, program)); err != nil || info.Mode()&0o111 == 0 {
			return "", fmt.Errorf("%w (no %s in %s)", ErrMissing, program, dir)
		}
	}
	return dir, nil
}
