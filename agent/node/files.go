// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"crem.dev/crem/agent/engine"
	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/render"
)

// Files are YAML files of domains and profiles for a node without Kubernetes.
type Files struct {
	Paths []string // files, or directories whose *.yaml, *.yml and *.json files are read
	Facts render.NodeFacts
}

// Loaded is one good state of the files.
type Loaded struct {
	Config   *engine.Config
	Spec     v1alpha1.CREMNodeSpec
	Problems []render.Problem // of single items; the others are in Config
}

// ReadFiles reads the files at paths, those of directories in the order of their names.
func ReadFiles(paths []string) ([]render.File, error) {
	var files []render.File
	for _, path := range paths {
		names, err := expand(path)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				return nil, readable(err)
			}
			files = append(files, render.File{Name: name, Data: data})
		}
	}
	return files, nil
}

// expand gives the files of a directory, or the path itself.
func expand(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, readable(err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, readable(err)
	}
	var names []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !slices.Contains([]string{".yaml", ".yml", ".json"}, ext) || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		names = append(names, filepath.Join(path, e.Name()))
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s has no file *.yaml, *.yml or *.json: write the domain and its profiles there, or name another path", path)
	}
	return names, nil
}

// readable makes a sentence of an error of the file system.
func readable(err error) error {
	var p *os.PathError
	if !errors.As(err, &p) {
		return err
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s does not exist: name a file of CREMDomain and CREMProfile documents", p.Path)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%s can not be read with this user's rights: change its mode or owner", p.Path)
	}
	return fmt.Errorf("%s can not be read: %w", p.Path, p.Err)
}

// judge decides what the files mean for this node. The error is for a person: one sentence for each fault.
func (f *Files) judge(files []render.File, generation int64) (*Loaded, error) {
	objs, err := render.Decode(files)
	if err != nil {
		return nil, err
	}
	if len(objs.Domains) == 0 {
		return nil, fmt.Errorf("%s: there is no CREMDomain in it: write one, it says which sites and which port", strings.Join(f.Paths, ", "))
	}
	result := render.Node(objs, f.Facts)
	cfg, problems := Convert(&result.Spec, generation)
	return &Loaded{Config: cfg, Spec: result.Spec, Problems: append(result.Problems, problems...)}, nil
}
