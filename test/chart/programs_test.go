// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"crem.dev/crem/internal/installation"
)

// TestFlagsExist: what the manifests pass is what the programs take. Programs are not packages, so their flags are read from their sources.
func TestFlagsExist(t *testing.T) {
	all := render(t, everything...)
	takes := func(program string, args []string) {
		t.Helper()
		source, err := os.ReadFile(root + "/cmd/" + program + "/" + args[0] + ".go")
		if err != nil {
			t.Fatal(err)
		}
		for _, arg := range args[1:] {
			flag, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
			if !regexp.MustCompile(`Var\(&o\.[a-zA-Z]+, "` + flag + `"|VarP\(&o\.[a-zA-Z]+, "[a-z-]+", "` + flag + `"`).Match(source) {
				t.Errorf("%s %s has no flag %s", program, args[0], arg)
			}
		}
	}
	takes("crem-agent", as[appsv1.DaemonSet](t, find(t, all, "DaemonSet", "crem-agent")).Spec.Template.Spec.Containers[0].Args)
	takes("crem-operator", as[appsv1.Deployment](t, find(t, all, "Deployment", "crem-operator")).Spec.Template.Spec.Containers[0].Args)
	for _, args := range [][]string{
		as[batchv1.Job](t, find(t, all, "Job", "crem-cleanup")).Spec.Template.Spec.Containers[0].Args,
		as[corev1.Pod](t, find(t, all, "Pod", "crem-test")).Spec.Containers[0].Args,
	} {
		known := false
		for _, cmd := range installation.Commands() {
			if cmd.Name() == args[0] {
				known = true
				if err := cmd.ParseFlags(args[1:]); err != nil {
					t.Errorf("%v: %v", args, err)
				}
			}
		}
		if !known {
			t.Errorf("there is no command %s", args[0])
		}
	}
}

// TestProjectNamesEveryKind: PROJECT is what kubebuilder goes by.
func TestProjectNamesEveryKind(t *testing.T) {
	var project struct {
		CLIVersion  string   `json:"cliVersion"`
		Domain      string   `json:"domain"`
		Layout      []string `json:"layout"`
		ProjectName string   `json:"projectName"`
		Repo        string   `json:"repo"`
		Resources   []struct {
			API struct {
				CRDVersion string `json:"crdVersion"`
			} `json:"api"`
			Controller                         bool   `json:"controller"`
			Domain, Group, Kind, Path, Version string `json:",omitempty"`
		} `json:"resources"`
		Version string `json:"version"`
	}
	raw, err := os.ReadFile(root + "/PROJECT")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(raw, &project); err != nil {
		t.Fatal(err)
	}
	var named, made []string
	for _, r := range project.Resources {
		named = append(named, r.Kind+"."+r.Version+"."+r.Group+"."+r.Domain)
		if r.Path != project.Repo+"/api/"+r.Version {
			t.Errorf("%s: path %s", r.Kind, r.Path)
		}
	}
	for _, u := range kustomize(t, "crd") {
		crd := as[apiextensions.CustomResourceDefinition](t, u)
		for _, v := range crd.Spec.Versions {
			made = append(made, crd.Spec.Names.Kind+"."+v.Name+"."+crd.Spec.Group)
		}
	}
	slices.Sort(named)
	slices.Sort(made)
	if diff := cmp.Diff(made, named); diff != "" {
		t.Errorf("CRDs (-), PROJECT (+): %s", diff)
	}
	if !slices.Equal(project.Layout, []string{"go.kubebuilder.io/v4"}) || project.Repo != "crem.dev/crem" {
		t.Errorf("%+v", project)
	}
}

// TestImageHoldsWhatTheProgramsNeed: every package of ours that they link is in a folder that the Dockerfile copies and .dockerignore lets in.
func TestImageHoldsWhatTheProgramsNeed(t *testing.T) {
	docker, err := os.ReadFile(root + "/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	ignore, err := os.ReadFile(root + "/.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath", "./cmd/crem-agent", "./cmd/crem-operator")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	folders := map[string]bool{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p struct{ ImportPath string }
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if ours, ok := strings.CutPrefix(p.ImportPath, "crem.dev/crem/"); ok {
			folders[strings.SplitN(filepath.ToSlash(ours), "/", 2)[0]] = true
		}
	}
	if len(folders) < 4 {
		t.Fatalf("folders %v", folders)
	}
	for f := range folders {
		if !strings.Contains(string(docker), "\nCOPY "+f+" ./"+f+"\n") || !strings.Contains(string(ignore), "\n!"+f+"\n") {
			t.Errorf("the image is built without %s", f)
		}
	}
	for _, want := range []string{"CGO_ENABLED=0", "-trimpath", "-buildid=", "${TARGETARCH}", "distroless/static", "--sbom=true", "--provenance=mode=max", "\nARG BUILDKIT_SBOM_SCAN_STAGE=true\n", "USER 65532:65532"} {
		if !strings.Contains(string(docker), want) {
			t.Errorf("Dockerfile: no %s", want)
		}
	}
}
