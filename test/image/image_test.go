// SPDX-License-Identifier: Apache-2.0

// Package image builds the image without a container engine: the programs as the Dockerfile says, the archive by the lab's own mkimg. It looks into
// both, and runs the programs with nothing around them but the image.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const (
	root    = "../.."
	version = "v0.0.0-image-test"
)

// stage takes from the Dockerfile what it builds and how it is started.
func stage(t *testing.T) (build, entrypoint, user string, files []string) {
	t.Helper()
	raw, err := os.ReadFile(root + "/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	find := func(pattern string) string {
		m := regexp.MustCompile(pattern).FindSubmatch(raw)
		if m == nil {
			t.Fatalf("the Dockerfile has no %s", pattern)
		}
		return strings.ReplaceAll(string(m[1]), "\\\n", " ")
	}
	return find(`(?s)\n    (CGO_ENABLED=0 .*?)\n\n`), find(`\nENTRYPOINT \["([^"]+)"\]`), find(`\nUSER (\S+)`), strings.Fields(find(`\nCOPY --from=build (.*) /\n`))
}

// compile runs the Dockerfile's own command, with its variables set as buildx does.
func compile(t *testing.T, command, arch string) string {
	t.Helper()
	out := t.TempDir()
	cmd := exec.Command("sh", "-c", strings.Replace(command, "/out/", out+"/", 1))
	cmd.Dir, cmd.Env = root, append(os.Environ(), "TARGETOS=linux", "TARGETARCH="+arch, "VERSION="+version)
	if says, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, says)
	}
	return out
}

// TestImage: the programs are static, stripped of this machine's paths, the same at every build and for each architecture; the image holds them and
// nothing else that runs, and starts as the user that the charts ask for.
func TestImage(t *testing.T) {
	command, entrypoint, user, files := stage(t)
	archs := []string{runtime.GOARCH}
	if os.Getenv("CREM_LONG") == "1" {
		archs = []string{"amd64", "arm64"}
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for _, arch := range archs {
		once, again := compile(t, command, arch), compile(t, command, arch)
		for _, f := range files {
			name := filepath.Base(f)
			inspect(t, filepath.Join(once, name), machines[arch])
			if a, b := read(t, filepath.Join(once, name)), read(t, filepath.Join(again, name)); !bytes.Equal(a, b) {
				t.Errorf("%s for %s differs from build to build", name, arch)
			}
		}
		if arch == runtime.GOARCH {
			inImage(t, once, entrypoint, user, files)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func inspect(t *testing.T, path string, machine elf.Machine) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Machine != machine {
		t.Errorf("%s is for %v", path, f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("%s is not static", path)
		}
	}
	if s := f.Section(".symtab"); s != nil {
		t.Errorf("%s has symbols", path)
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if settings["CGO_ENABLED"] != "0" || settings["-trimpath"] != "true" || len(info.Deps) < 10 { // which is what an SBOM is made of
		t.Errorf("%s: %v, %d modules", path, settings, len(info.Deps))
	}
	if here, err := filepath.Abs(root); err != nil || bytes.Contains(read(t, path), []byte(here+"/")) {
		t.Errorf("%s names this machine's folders: %v", path, err)
	}
}

// descriptor is one reference of the OCI image format.
type descriptor struct {
	MediaType string            `json:"mediaType"`
	Digest    string            `json:"digest"`
	Size      int               `json:"size"`
	Platform  map[string]string `json:"platform"`
}

// inImage makes the archive, follows its digests, and runs what is in it.
func inImage(t *testing.T, programs, entrypoint, user string, files []string) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "crem.tar")
	args, names := []string{}, map[string]bool{}
	for _, f := range files {
		name := filepath.Base(f)
		names[name] = true
		args = append(args, name+"="+filepath.Join(programs, name))
		if "/"+name == entrypoint { // the first file is what the image starts
			slices.Reverse(args)
		}
	}
	cmd := exec.Command("go", append([]string{"run", "./mkimg", "-o", archive, "-ref", "crem.dev/crem:test", "-user", user}, args...)...)
	cmd.Dir = root + "/test/lab/kube/tools"
	if says, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mkimg: %v\n%s", err, says)
	}
	blobs := untar(t, bytes.NewReader(read(t, archive)))
	blob := func(d descriptor) []byte {
		b := blobs["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
		if fmt.Sprintf("sha256:%x", sha256.Sum256(b)) != d.Digest || len(b) != d.Size {
			t.Fatalf("%s is not what its digest says", d.Digest)
		}
		return b
	}
	var index struct{ Manifests []descriptor }
	decode(t, blobs["index.json"], &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Platform["architecture"] != runtime.GOARCH || !bytes.Contains(blobs["oci-layout"], []byte(`"1.0.0"`)) {
		t.Fatalf("index %+v", index)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	decode(t, blob(index.Manifests[0]), &manifest)
	var config struct {
		Config struct {
			Entrypoint []string
			User       string
		}
	}
	decode(t, blob(manifest.Config), &config)
	if len(config.Config.Entrypoint) != 1 || config.Config.Entrypoint[0] != entrypoint || config.Config.User != user || user != "65532:65532" {
		t.Errorf("starts %v as %s", config.Config.Entrypoint, config.Config.User)
	}
	dir := t.TempDir()
	for name, b := range untar(t, bytes.NewReader(blob(manifest.Layers[0]))) {
		if !names[name] && name != "etc/passwd" {
			t.Errorf("the image has %s", name)
		}
		if names[name] {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o755); err != nil {
				t.Fatal(err)
			}
			delete(names, name)
			start(t, dir, "/"+name)
		}
	}
	if len(names) > 0 {
		t.Errorf("the image lacks %v", names)
	}
}

// start runs a program in a root that has nothing but the image, as its user.
func start(t *testing.T, dir, program string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Log("not run in its own root, for which it takes root")
		return
	}
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { //nolint:gosec // another user runs it
			t.Fatal(err)
		}
	}
	cmd := &exec.Cmd{Path: program, Args: []string{program, "version"}, Env: []string{}, Dir: "/",
		SysProcAttr: &syscall.SysProcAttr{Chroot: dir, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}}
	if says, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(says), version) {
		t.Errorf("%s version: %v, %s", program, err, says)
	}
}

func decode(t *testing.T, raw []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatal(err)
	}
}

// untar gives the files of an archive.
func untar(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if files[h.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}
