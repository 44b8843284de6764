// SPDX-License-Identifier: Apache-2.0

package served_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/served"
	"crem.dev/crem/test/oldercrds"
)

// read asks a server that answers with a description.
func read(t *testing.T, code int, description []byte) (*served.Fields, error) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if code != http.StatusOK || r.URL.Path != "/openapi/v3/apis/crem.dev/v1alpha1" {
			http.Error(w, "no", code)
			return
		}
		_, _ = w.Write(description)
	}))
	defer server.Close()
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return served.Read(t.Context(), client.RESTClient())
}

func description(t *testing.T, without ...string) []byte {
	t.Helper()
	return oldercrds.Description(t, "../../config/crd/bases", without...)
}

// TestRead: what an API server lacks is named, and where nothing works without it there is a sentence that says what to do.
func TestRead(t *testing.T) {
	noSlices := []byte(strings.Replace(string(description(t)), `"kind":"CREMEndpointSlice"`, `"kind":"Another"`, 1))
	for _, row := range []struct {
		name        string
		code        int
		description []byte
		missing     []string
		says        string
	}{
		{"complete", http.StatusOK, description(t), nil, ""},
		{"a newer field", http.StatusOK, []byte(strings.Replace(string(description(t)), `"bootID":{`, `"later":{"type":"string"},"bootID":{`, 1)), nil, ""},
		{"fields are missing", http.StatusOK, description(t, "CREMProfile spec.spread", "CREMNode spec.domains.rules"), []string{"CREMProfile spec.spread", "CREMNode spec.domains.rules"}, ""},
		{"none at all", http.StatusNotFound, nil, nil, "knows no kind of crem.dev/v1alpha1: install the CRDs"},
		{"a kind is missing", http.StatusOK, noSlices, nil, "does not know the kind CREMEndpointSlice: install"},
		{"another answer", http.StatusOK, []byte("hello"), nil, "can not be read"},
		{"does not answer", http.StatusForbidden, nil, nil, "lets this account in"},
	} {
		t.Run(row.name, func(t *testing.T) {
			f, err := read(t, row.code, row.description)
			if (err == nil) != (row.says == "") || err != nil && !strings.Contains(err.Error(), row.says) {
				t.Fatal(err)
			}
			if !slices.Equal(f.Missing(), row.missing) {
				t.Errorf("missing %q", f.Missing())
			}
		})
	}
}

// TestKeep: of a status everything goes that is not known, of the rest only what says nothing; what is not a field stays.
func TestKeep(t *testing.T) {
	f, err := read(t, http.StatusOK, description(t, "CREMNode spec.domains.wan", "CREMNode spec.domains.ipsec", "CREMNode status.domains.sites", "CREMNode status.excluded"))
	if err != nil {
		t.Fatal(err)
	}
	const rest = `"apiVersion":"crem.dev/v1alpha1","kind":"CREMNode","metadata":{"name":"n","annotations":{"excluded":"x"}}`
	for _, row := range []struct{ name, in, out, says string }{
		{"nothing unknown", `{` + rest + `,"spec":{"domains":[{"name":"d","site":"west"}]},"status":{"bootID":"b"}}`, `{` + rest + `,"spec":{"domains":[{"name":"d","site":"west"}]},"status":{"bootID":"b"}}`, ""},
		{"status", `{` + rest + `,"status":{"bootID":"b","excluded":[{"name":"eth0"}],"domains":[{"name":"d","programmed":false,"sites":[{"name":"east"}]},{"name":"e"}]}}`,
			`{` + rest + `,"status":{"bootID":"b","domains":[{"name":"d","programmed":false},{"name":"e"}]}}`, ""},
		{"a spec that says nothing of it", `{` + rest + `,"spec":{"domains":[{"name":"d","ipsec":{"mode":"","none":[]},"wan":null}]}}`, `{` + rest + `,"spec":{"domains":[{"name":"d"}]}}`, ""},
		{"a spec that somebody relies on", `{` + rest + `,"spec":{"domains":[{"name":"d"},{"name":"e","ipsec":{"mode":"Required"}}]}}`, "", "the API server's CREMNode is too old, it has no spec.domains.ipsec: install the CRDs"},
		{"another kind", `{"kind":"Lease","spec":{"wan":1}}`, `{"kind":"Lease","spec":{"wan":1}}`, ""},
		{"no object", `[1]`, "", "leave out"},
	} {
		t.Run(row.name, func(t *testing.T) {
			out, err := f.Keep([]byte(row.in))
			if (err == nil) != (row.says == "") || err != nil && !strings.Contains(err.Error(), row.says) {
				t.Fatal(err)
			}
			if row.out != "" && !sameJSON(t, out, []byte(row.out)) {
				t.Errorf("%s", out)
			}
		})
	}
	var all *served.Fields
	if out, err := all.Keep([]byte("as it is")); err != nil || string(out) != "as it is" {
		t.Errorf("%s, %v", out, err)
	}
}

// TestStatus: a status that is compared with what an API server has lacks what that cannot have.
func TestStatus(t *testing.T) {
	f, err := read(t, http.StatusOK, description(t, "CREMDomain status.sites"))
	if err != nil {
		t.Fatal(err)
	}
	in := v1alpha1.CREMDomainStatus{ObservedGeneration: 3, Sites: []v1alpha1.SiteHealth{{Name: "east"}}}
	out, err := served.Status(f, v1alpha1.KindDomain, in)
	if want := (v1alpha1.CREMDomainStatus{ObservedGeneration: 3}); err != nil || !reflect.DeepEqual(out, want) {
		t.Errorf("%+v, %v", out, err)
	}
	if out, err := served.Status(nil, v1alpha1.KindDomain, in); err != nil || !reflect.DeepEqual(out, in) {
		t.Errorf("%+v, %v", out, err)
	}
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal(a, &x); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &y); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}
