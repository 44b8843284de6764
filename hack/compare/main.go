// SPDX-License-Identifier: Apache-2.0

// Command compare compares ways to live with loss, over loss, round-trip time and size of messages: by analysis everywhere, and by
// simulation in one setting. It writes JSON, and from it the page docs/compare.md. make compare runs it.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
)

func main() {
	out := flag.String("out", "build/compare.json", "file for all numbers")
	page := flag.String("page", "docs/compare.md", "page made of them")
	from := flag.String("from", "", "make the page of this file, and measure nothing")
	most := flag.Int("portions", 1200, "longest simulation of one cell, in portions of 65,536 events")
	version := flag.String("version", "unknown", "what is compared, for the page")
	flag.Parse()
	if err := run(*out, *page, *from, *version, *most); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func run(out, page, from, version string, most int) error {
	var c Comparison
	if from != "" {
		raw, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(raw, &c); err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
	} else {
		c = compare(version, most)
		raw, err := json.MarshalIndent(c, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(out, append(raw, '\n'), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(page, []byte(c.page()), 0o644)
}
