// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"
	"time"
)

func TestCPUTime(t *testing.T) {
	if used, err := schedTime("4596478 19523919 8\n"); err != nil || used != 4596478 {
		t.Errorf("%v, %v", used, err)
	}
	if _, err := schedTime("x"); err == nil {
		t.Error("no number, no error")
	}
	before, err := cpuTime(os.Getpid())
	if err != nil {
		t.Skip(err)
	}
	for begin := time.Now(); time.Since(begin) < 50*time.Millisecond; {
	}
	after, err := cpuTime(os.Getpid())
	if err != nil || after <= before {
		t.Errorf("time stood still: %v, %v, %v", before, after, err)
	}
}
