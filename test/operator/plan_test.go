// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/plan"
	"crem.dev/crem/internal/plugin"
)

// TestPlanFromStatus: kubectl crem plan --from-status takes from a real API server what a domain reports of a site, lets flags say it better, and says what it
// can not take.
func TestPlanFromStatus(t *testing.T) {
	clean(t)
	d := domain("d", 52000, "wan0", labelled("gw", "1"))
	create(t, d)
	var now v1alpha1.CREMDomain
	if err := api.Get(t.Context(), client.ObjectKey{Name: "d"}, &now); err != nil {
		t.Fatal(err)
	}
	now.Status.Sites = []v1alpha1.SiteHealth{west(12, v1alpha1.LossLow, 31), {Name: "north", Loss: v1alpha1.LossUnknown}}
	if err := api.Status().Update(t.Context(), &now); err != nil {
		t.Fatal(err)
	}
	file := kubeconfig(t)
	ask := func(args ...string) (code int, out, says string) {
		var o, e bytes.Buffer
		code = plugin.Execute(t.Context(), append([]string{"plan", "--kubeconfig", file, "--bandwidth", "100G", "--message", "64Mi", "--messages", "0", "-o", "json"}, args...), nil, &o, &e)
		return code, o.String(), e.String()
	}

	code, out, says := ask("--from-status", "west")
	var made plan.Plan
	if err := json.Unmarshal([]byte(out), &made); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, says)
	}
	if in := made.Input; in.RTT != 31*time.Millisecond || in.Flows != 12 || in.Loss != 1e-3 || in.Site != "west" || !strings.Contains(made.YAML, "destinationSites: [west]") {
		t.Errorf("%+v\n%s", in, made.YAML)
	}
	if want := "Domain d reports of site west: 12 flows, loss low (reckoned with 0.001; --loss says it better), round trip 31 ms.\n"; says != want {
		t.Errorf("%q, want %q", says, want)
	}

	_, out, _ = ask("--from-status", "west", "--rtt", "20ms", "--loss", "1e-5", "--flows", "3")
	if err := json.Unmarshal([]byte(out), &made); err != nil || made.Input.RTT != 20*time.Millisecond || made.Input.Loss != 1e-5 || made.Input.Flows != 3 {
		t.Errorf("flags do not win: %v, %+v", err, made.Input)
	}
	for site, want := range map[string]string{
		"north": "domain d has no loss of site north yet: wait for traffic, or write --loss",
		"south": "no domain reports anything of a site south",
	} {
		if code, _, says := ask("--from-status", site); code == 0 || !strings.Contains(says, want) {
			t.Errorf("%s: exit code %d, %q", site, code, says)
		}
	}
}
