// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image"
	"image/color"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func pageOf(t *testing.T, in Input, samples int) string {
	t.Helper()
	p := Make(normal(t, in))
	s := p.Survey(func(done, _ int) bool { return done < samples })
	var b strings.Builder
	if err := p.HTML(&b, s); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

const whole = 1 << 20 // samples: more than a survey has

var training = Input{RTT: 25 * time.Millisecond, Bandwidth: 400e9, Loss: 1e-4, Message: 128 * mib, LinkMTU: 9000}

// TestPageNeedsNothingElse: no script, nothing to load, nothing that the template refused to write, and well-formed drawings.
func TestPageNeedsNothingElse(t *testing.T) {
	text := pageOf(t, training, whole)
	for _, bad := range []string{"<script", "http:", "https:", "//", "url(", "@import", "src=", "href=", "ZgotmplZ", "NaN", "Inf"} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	drawings := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(text, -1)
	if len(drawings) != 3+3*len(looks) {
		t.Errorf("%d drawings", len(drawings))
	}
	cells := 0
	for _, d := range drawings {
		for dec := xml.NewDecoder(strings.NewReader(d)); ; {
			token, err := dec.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%v in %.200s", err, d)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
				cells++
			}
		}
	}
	if cells != len(mapLosses)*len(mapSizes) {
		t.Errorf("%d cells in the map", cells)
	}
	if n := strings.Count(text, `class="cell f-`); n != cells || strings.Count(text, ` now"`) != 1 {
		t.Errorf("%d cells with a mechanism, or not one of them is framed", n)
	}
	for _, says := range []string{"epsilon: &#34;1e-4&#34;", "Set the local ACK timeout", "fixed XOR (32, 8)", "<title>Plan for 128 MiB messages"} {
		if !strings.Contains(text, says) {
			t.Errorf("the page lacks %q", says)
		}
	}
}

// TestPageOfWhatThereIs: a survey that was ended early leaves out what it has not.
func TestPageOfWhatThereIs(t *testing.T) {
	for _, tc := range []struct {
		samples            int
		loss, size, theMap bool
	}{
		{0, false, false, false}, {len(curveLosses), true, false, false}, {len(curveLosses) + 5, true, true, false}, {len(curveLosses) + len(curveSizes) + 3, true, true, true},
	} {
		text := pageOf(t, training, tc.samples)
		for id, want := range map[string]bool{`id="by-loss"`: tc.loss, `id="by-size"`: tc.size, `id="map"`: tc.theMap, "ended early": true} {
			if got := strings.Contains(text, id); got != want {
				t.Errorf("%d samples: %s is %v", tc.samples, id, got)
			}
		}
	}
	bursty := training
	bursty.Burst = 4
	if text := pageOf(t, bursty, 3); strings.Contains(text, mechanismNames[keyXOR]) {
		t.Error("XOR under runs of losses is not known, but drawn")
	}
}

// TestPageInBrowser looks at the page with a real browser, on light and dark paper, narrow and wide: the paper has its colour, and the
// curve and the map cells of CREM are there. Without a browser it is skipped.
func TestPageInBrowser(t *testing.T) {
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		t.Skip("SKIPPED: no browser here, so nobody has looked at the page; install one (apt-get install chromium) and run this test again")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "plan.html")
	if err := os.WriteFile(file, []byte(pageOf(t, training, whole)), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, size, scheme string
		paper, crem        color.RGBA
	}{
		{"dark", "1000,3600", "0", color.RGBA{0x14, 0x17, 0x1a, 0xff}, color.RGBA{0x6a, 0xa9, 0xf7, 0xff}},
		{"light and narrow", "500,5200", "1", color.RGBA{0xff, 0xff, 0xff, 0xff}, color.RGBA{0x1a, 0x66, 0xc2, 0xff}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			shot := filepath.Join(dir, tc.name+".png")
			cmd := exec.Command(browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir="+filepath.Join(dir, "profile"),
				"--blink-settings=preferredColorScheme="+tc.scheme, "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size="+tc.size, "--screenshot="+shot, "file://"+file)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			raw, err := os.ReadFile(shot)
			if err != nil {
				t.Fatal(err)
			}
			img, err := png.Decode(bytes.NewReader(raw))
			if err != nil {
				t.Fatal(err)
			}
			if got := color.RGBAModel.Convert(img.At(3, 3)); got != tc.paper {
				t.Errorf("the paper is %v, want %v", got, tc.paper)
			}
			if n := count(img, tc.crem); n < 15000 {
				t.Errorf("%d pixels have the colour of CREM", n)
			}
			if n := ink(img, tc.paper); n < 0.02 || n > 0.6 {
				t.Errorf("%.3f of the page is not paper", n)
			}
		})
	}
}

// count is how many pixels have a colour.
func count(img image.Image, c color.RGBA) (n int) {
	for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y++ {
		for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
			if color.RGBAModel.Convert(img.At(x, y)) == c {
				n++
			}
		}
	}
	return n
}

// ink is the share of pixels that are not paper.
func ink(img image.Image, paper color.RGBA) float64 {
	b := img.Bounds()
	return 1 - float64(count(img, paper))/float64(b.Dx()*b.Dy())
}
