package runner

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/verify"
	"github.com/holdfast-io/holdfast/verify/history"
)

// Every lock that is broken on purpose is caught, by a check that is meant to catch it, and the intact one passes. One
// grant, wait or release in RARITY is faulty: with 10000, which takes a quarter of an hour, one lock is tested after the
// other. On a busy machine a lost wake-up may not occur in one run: a missed fault gets two more, with other seeds.
func TestBrokenLocks(t *testing.T) { //nolint:tparallel // a rare fault needs the whole capacity of the machine
	leasetest.Slow(t)
	t.Parallel()
	rarity, err := strconv.Atoi(cmp.Or(os.Getenv("RARITY"), "20"))
	if err != nil || rarity < 1 {
		t.Fatalf("RARITY: %d, %v", rarity, err)
	}
	const often, atOnce = 200, 8
	slots := make(chan struct{}, atOnce)
	for _, b := range append(brokenLocks(), broken{name: "nothing is broken"}) {
		t.Run(b.name, func(t *testing.T) {
			if rarity <= often {
				t.Parallel()
				slots <- struct{}{}
				defer func() { <-slots }()
			}
			for seed := uint64(1); ; seed++ {
				found, r := tryToCatch(t, b, seed, rarity)
				switch {
				case found, len(b.caught) == 0 && r.Verdict == verify.Pass:
					return
				case seed == 3 || len(b.caught) == 0:
					t.Fatalf("%s, not found by %q: %+v", r.Verdict, b.caught, r.Checks)
				}
			}
		})
	}
}

// tryToCatch runs until the fault is found, or for a minute.
func tryToCatch(t *testing.T, b broken, seed uint64, rarity int) (bool, *verify.Report) {
	t.Helper()
	cfg := Config{URL: "memory://", For: time.Minute, Seed: seed, Profile: Torture, TTL: time.Second, Rate: 1500}
	if rarity > 200 {
		cfg.Rate = 0
	}
	if len(b.caught) == 0 {
		cfg.For = 5 * time.Second
	} else {
		cfg.breaks = func(inner backend.Backend) backend.Backend { return b.make(inner, rarity) }
	}
	begun := time.Now()
	found := make(chan struct{})
	var once sync.Once
	referee := verify.NewReferee(t.Context(), verify.Options{}, func(check string, _ verify.Finding) {
		if slices.Contains(b.caught, check) {
			once.Do(func() {
				t.Logf("one in %d is found by %s after %.1f s", rarity, check, time.Since(begun).Seconds())
				close(found)
			})
		}
	})
	cfg.found, cfg.Record = found, referee.Add
	err := Run(t.Context(), cfg)
	r := referee.Report()
	if err != nil {
		t.Fatal(err)
	}
	return cfg.isFound(), r
}

// A run that is interrupted leaves no process of its own.
func TestInterruptedRunLeavesNothing(t *testing.T) { //nolint:paralleltest // it looks at the children of this process
	leasetest.Slow(t)
	cfg := torture(t, "sqlite", Config{For: time.Minute, Seed: 1, Profile: Torture})
	interrupted := errors.New("interrupted")
	kills := 0
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	cfg.Record = func(e history.Event) error {
		if e.Kind == history.KindKill {
			if kills++; kills == 2 {
				cancel(interrupted)
			}
		}
		return nil
	}
	if err := Run(ctx, cfg); !errors.Is(err, interrupted) {
		t.Errorf("it ended with %v", err)
	}
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		if b, err := os.ReadFile(list); err == nil && len(b) > 0 {
			t.Errorf("it left the processes %s", b)
		}
	}
}
