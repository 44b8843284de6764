// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"crem.dev/crem/test/lab/endpoint"
	"crem.dev/crem/test/lab/wan"
	"crem.dev/crem/test/netns"
)

// built are the programs, compiled once.
var built Programs

func TestMain(m *testing.M) { os.Exit(withPrograms(m)) }

func withPrograms(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // every test says that it needs root
	}
	dir, err := os.MkdirTemp("", "crem-programs-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("go", "build", "-o", dir+"/", "./test/lab/cmd/crem-wan", "./test/lab/cmd/crem-rc", "./cmd/crem-agent")
	cmd.Dir = "../../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Printf("%v: %s\n", err, out)
		return 1
	}
	built = Programs{WAN: filepath.Join(dir, "crem-wan"), RC: filepath.Join(dir, "crem-rc"), Agent: filepath.Join(dir, "crem-agent")}
	return m.Run()
}

const profile = `apiVersion: crem.dev/v1alpha1
kind: CREMProfile
metadata: {name: lab}
spec: {k: 32, maxRepairSymbols: 8, epsilon: "1e-3"}
`

// small is a short transfer over a slow link, so that it says something on a busy machine too.
func small() Case {
	c := Case{
		Path:     wan.Settings{Rate: 100_000_000, Queue: 2_000_000, Delay: wan.Duration(5 * time.Millisecond), ProtectedOnly: true, Seed: 3},
		Transfer: endpoint.DefaultOptions(),
	}
	c.Transfer.Warmup, c.Transfer.Duration, c.Transfer.Drain = time.Second, 2*time.Second, 20*time.Second
	c.Transfer.Size, c.Transfer.Config.Window, c.Transfer.Config.Rate, c.Transfer.Config.Retries = 200_000, 100, 100_000_000, -1
	return c
}

func transfer(t *testing.T, c Case) *Outcome {
	t.Helper()
	netns.NeedRoot(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	o, err := Run(ctx, built, c)
	if err != nil {
		t.Fatal(err)
	}
	if o.Corrupt() > 0 {
		t.Errorf("%d corrupt messages: %+v %+v", o.Corrupt(), o.Requester.Total, o.Responder.Total)
	}
	if o.Requester.Failed+o.Responder.Failed > 0 || o.Requester.Unfinished > 0 || o.Requester.Messages == 0 {
		t.Errorf("%d connections failed, %d messages complete, %d not", o.Requester.Failed, o.Requester.Messages, o.Requester.Unfinished)
	}
	return o
}

func TestUnprotectedTransfers(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6 %v", ipv6), func(t *testing.T) {
			c := small()
			c.IPv6, c.Path.Loss, c.Transfer.Op, c.Transfer.Connections = ipv6, 0.01, endpoint.Mixed, 2
			o := transfer(t, c)
			if lost := o.WAN.AToB.LostRandom[wan.RoCEData].Packets; lost == 0 || o.Requester.SentOverNeeded <= 1 {
				t.Errorf("%d packets lost, sent over needed %v", lost, o.Requester.SentOverNeeded)
			}
			if o.WAN.AToB.Unfinished+o.WAN.BToA.Unfinished > 0 {
				t.Error("frames that are not what a wire carries")
			}
		})
	}
}

func TestProtectedTransfers(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6 %v", ipv6), func(t *testing.T) {
			c := small()
			c.IPv6, c.Path.Loss, c.Profile = ipv6, 0.01, profile
			o := transfer(t, c)
			if o.Restored() == 0 || o.RepairOverhead() == 0 {
				t.Errorf("%d packets restored, repair overhead %v: nothing was protected; agent A: %+v", o.Restored(), o.RepairOverhead(), o.StatusA)
			}
		})
	}
}

func TestInterruptEndsATrial(t *testing.T) {
	netns.NeedRoot(t)
	ctx, cancel := context.WithCancel(context.Background())
	c := small()
	c.Transfer.Duration = time.Hour
	var pid int
	c.During = func(r *Running) error {
		pid = r.Requester.Pid()
		cancel()
		return nil
	}
	if _, err := Run(ctx, built, c); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); pid == 0 || err == nil {
		t.Error("a program of the lab still runs")
	}
}

func TestABrokenProfileIsSaid(t *testing.T) {
	netns.NeedRoot(t)
	c := small()
	c.Profile = "kind: CREMProfile\napiVersion: crem.dev/v1alpha1\nmetadata: {name: lab}\nspec: {k: many}\n"
	if _, err := Run(context.Background(), built, c); err == nil {
		t.Error("accepted")
	} else {
		t.Log(err)
	}
}

func TestTrialsTakeTurns(t *testing.T) {
	first, err := takeTurn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := takeTurn(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second trial did not wait: %v", err)
	}
	first()
	second, err := takeTurn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	second()
}
