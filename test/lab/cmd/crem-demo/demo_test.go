// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"crem.dev/crem/test/lab/trial"
)

func testLink() *link {
	return &link{rate: 400_000_000, rtt: 20 * time.Millisecond, window: 1.6, depth: 8, duration: 10 * time.Second}
}

// exampleRows are like those of a run.
func exampleRows() []row {
	l := testLink()
	figures := []struct{ goodput, p99 float64 }{{390, 190}, {388, 193}, {277, 620}, {380, 200}, {80, 1930}, {370, 210}, {45, 3600}, {362, 222}, {110, 2100}, {352, 260}}
	var rows []row
	for i, s := range scenarios(&options{programs: trial.Programs{Agent: "x"}}) {
		o := &trial.Outcome{}
		o.Requester.GoodputBps, o.Requester.MCT.P99 = figures[i].goodput*1e6, figures[i].p99
		rows = append(rows, newRow(&s, l, o, figures[0].goodput*1e6))
	}
	return rows
}

func TestScenariosAreThoseOfTheREADME(t *testing.T) {
	all := scenarios(&options{programs: trial.Programs{Agent: "x"}})
	if len(all) != 10 || all[0].profile != nil || all[0].loss != 0 {
		t.Fatalf("%d scenarios, first %+v", len(all), all[0])
	}
	for i := 0; i < len(all); i += 2 {
		a, b := all[i], all[i+1]
		if a.profile != nil || b.profile == nil || a.loss != b.loss || a.burstLength != b.burstLength {
			t.Errorf("scenario %d is not the same path without and with CREM", i)
		}
		if pa, pb := a.trial(testLink()).Path, b.trial(testLink()).Path; pa != pb {
			t.Errorf("paths differ: %+v, %+v", pa, pb)
		}
	}
}

func TestRowsHaveTheFieldsOfTheJSON(t *testing.T) {
	text, err := json.Marshal(exampleRows())
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]any
	if err := json.Unmarshal(text, &rows); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"scenario", "rtt_ms", "loss", "loss_model", "protected", "goodput_bps", "lossless_goodput_bps", "goodput_ratio",
		"sent_over_needed", "mct_p50_ms", "mct_p99_ms", "repair_overhead", "restored", "naks", "corrupt"} {
		for i, r := range rows {
			if _, ok := r[key]; !ok {
				t.Errorf("row %d has no %s", i, key)
			}
		}
	}
	if rows[0]["goodput_ratio"] != 1.0 || rows[0]["lossless_goodput_bps"] != 390e6 {
		t.Errorf("lossless row: %v", rows[0])
	}
}

func TestPlotIsWellFormed(t *testing.T) {
	text := plot(exampleRows(), testLink())
	for d := xml.NewDecoder(strings.NewReader(string(text))); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(string(text), "<circle"); n != 2*2*5+2 {
		t.Errorf("%d points", n)
	}
	if name := os.Getenv("CREM_PLOT"); name != "" {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	plot(nil, testLink()) // nothing measured: no crash
	plot(exampleRows()[:1], testLink())
}
