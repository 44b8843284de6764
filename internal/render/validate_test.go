// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// rulesTable is testdata/rules.yaml; test/crd reads it too.
type rulesTable struct {
	Bases map[string]map[string]any
	Rows  []rulesRow
}

type rulesRow struct {
	Rule, Kind string
	Spec       map[string]any
	Many       *struct {
		Field  string
		Count  int
		Format string
	}
	Field, Says, CRD string
}

// object builds the row's object: the base with the row's spec merged in.
func (row rulesRow) object(t *testing.T, bases map[string]map[string]any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(bases[row.Kind])
	if err != nil {
		t.Fatal(err)
	}
	var obj map[string]any
	if err := json.Unmarshal(raw, &obj); err != nil {
		t.Fatal(err)
	}
	spec := obj["spec"].(map[string]any)
	merge(spec, row.Spec)
	if m := row.Many; m != nil {
		var list []any
		for i := range m.Count {
			list = append(list, fmt.Sprintf(m.Format, i))
		}
		spec[m.Field] = list
	}
	return obj
}

func merge(into, patch map[string]any) {
	for key, value := range patch {
		sub, isMap := value.(map[string]any)
		have, had := into[key].(map[string]any)
		switch {
		case isMap && had:
			merge(have, sub)
		default:
			into[key] = value // null stays: it must be read as absent
		}
	}
}

func readRules(t *testing.T) rulesTable {
	t.Helper()
	raw, err := os.ReadFile("testdata/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var table rulesTable
	if err := yaml.UnmarshalStrict(raw, &table); err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) < 100 {
		t.Fatalf("only %d rows", len(table.Rows))
	}
	return table
}

func TestRules(t *testing.T) {
	table := readRules(t)
	for _, row := range table.Rows {
		t.Run(row.Rule, func(t *testing.T) {
			raw, err := yaml.Marshal(row.object(t, table.Bases))
			if err != nil {
				t.Fatal(err)
			}
			_, err = Decode([]File{{Name: "a.yaml", Data: raw}})
			if row.Says == "" {
				if err != nil {
					t.Fatalf("refused: %v\n%s", err, raw)
				}
				return
			}
			var faults Faults
			if !errors.As(err, &faults) {
				t.Fatalf("accepted, or no Faults: %v\n%s", err, raw)
			}
			for _, f := range faults {
				if f.Field == row.Field && strings.Contains(f.Says, row.Says) {
					if !strings.HasPrefix(f.Error(), "a.yaml, document 1 ("+row.Kind+" ") {
						t.Errorf("fault does not say where: %s", f.Error())
					}
					return
				}
			}
			t.Errorf("want %s … %s\ngot %v", row.Field, row.Says, err)
		})
	}
}
