// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"crem.dev/crem/api/v1alpha1"
)

// TestDiskCopy: what is saved comes back as it was; whatever is not wholly good is refused with a sentence.
func TestDiskCopy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := store{dir: dir, node: "gw1"}
	if last, err := s.load(); last != nil || err != nil {
		t.Fatalf("%+v, %v", last, err)
	}
	n := nodeOf("gw1")
	n.UID, n.Generation = "1234", 5
	n.Spec.Domains[0].Rules[0].Source = v1alpha1.SourcePods
	d := desire("gw1", n, []*v1alpha1.CREMEndpointSlice{
		{Profile: "special", Addresses: []v1alpha1.NodeAddress{"10.1.0.9", "10.1.0.5"}}, {Profile: "special", Addresses: []v1alpha1.NodeAddress{"10.1.0.5"}},
		{Profile: "other", Addresses: []v1alpha1.NodeAddress{"10.1.0.7"}},
	})
	if diff := cmp.Diff(map[v1alpha1.ObjectName][]v1alpha1.NodeAddress{"special": {"10.1.0.5", "10.1.0.9"}}, d.Pods); diff != "" {
		t.Error(diff)
	}
	for range 2 { // the second one replaces the first
		if err := s.save(d, "boot"); err != nil {
			t.Fatal(err)
		}
	}
	last, err := s.load()
	if err != nil || last.BootID != "boot" || last.Desired.digest() != d.digest() {
		t.Fatalf("%+v, %v", last, err)
	}
	if diff := cmp.Diff(d, &last.Desired); diff != "" {
		t.Error(diff)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v %v", entries, err)
	}
	if info, err := os.Stat(s.path()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	whole, err := os.ReadFile(s.path())
	if err != nil {
		t.Fatal(err)
	}

	for i := range whole { // one flipped bit anywhere
		bad := append([]byte(nil), whole...)
		bad[i] ^= 1
		if err := os.WriteFile(s.path(), bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if last, err := s.load(); err == nil && i != len(whole)-1 { // the newline at the end says nothing
			t.Fatalf("octet %d of %d was changed, and the copy is used: %+v", i, len(whole), last)
		}
	}
	for name, tc := range map[string]struct {
		text string
		node string
		says string
	}{
		"empty":           {"", "gw1", "damaged"},
		"cut":             {string(whole[:len(whole)/2]), "gw1", "its checksum is wrong"},
		"a newer format":  {strings.Replace(string(whole), "crem-desired-1", "crem-desired-2", 1), "gw1", "another version of the agent"},
		"of another node": {string(whole), "gw2", `is of node "gw1" and this is "gw2"`},
	} {
		if err := os.WriteFile(s.path(), []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if last, err := (store{dir: dir, node: tc.node}).load(); last != nil || err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %+v, %v", name, last, err)
		}
	}
	if err := (store{dir: "/proc/none", node: "gw1"}).save(d, ""); err == nil {
		t.Error("saved where nothing can be")
	}
}
