// SPDX-License-Identifier: Apache-2.0

// Package kubeassets finds the kube-apiserver, etcd and kubectl that tests run against.
package kubeassets

import (
	"os"
	"path/filepath"
	"testing"
)

// programs that must be in the folder.
var programs = []string{"kube-apiserver", "etcd", "kubectl"}

// Dir is the folder of the programs: KUBEBUILDER_ASSETS, else the cache where test/lab/kube/kube.sh builds them. Without them the test is skipped, or
// fails if CREM_REQUIRE_ENVTEST is 1.
func Dir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		cache := os.Getenv("XDG_CACHE_HOME")
		if cache == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				t.Fatalf("find the cache folder: %v", err)
			}
			cache = filepath.Join(home, ".cache")
		}
		dir = filepath.Join(cache, "crem", "kube", "bin")
	}
	for _, p := range programs {
		if info, err := os.Stat(filepath.Join(dir, p)); err == nil && !info.IsDir() {
			continue
		}
		const say = "%s has no %s: run test/lab/kube/kube.sh build kube-apiserver etcd kubectl"
		if os.Getenv("CREM_REQUIRE_ENVTEST") == "1" {
			t.Fatalf(say, dir, p)
		}
		t.Skipf(say, dir, p)
	}
	return dir
}
