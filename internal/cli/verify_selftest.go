package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/verify"
	"github.com/holdfast-io/holdfast/verify/history"
	"github.com/holdfast-io/holdfast/verify/runner"
)

const (
	// maxRarity bounds --rarity: a rarer fault cannot be found in a minute.
	maxRarity = 1_000_000
	// often is a rarity with which a fault shows soon, even when several locks are tested in
	// parallel.
	often = 200
	// oftenRate is then how many locks are acquired per second, for each broken lock.
	oftenRate = 1500
	// trialTime is how long a fault may take to be found.
	trialTime = time.Minute
	// soundTime is how long the lock that is not broken is tested.
	soundTime = 5 * time.Second
	// trialTTL is the TTL of the leases.
	trialTTL = time.Second
)

// trial is the result of one lock of the self-test.
type trial struct {
	Name string   `json:"name"`
	Want []string `json:"want,omitempty"` // one of these checks
	// Rarity: one grant, wait or release in so many is faulty.
	Rarity  int            `json:"rarity,omitempty"`
	Caught  []string       `json:"caught"`
	Good    bool           `json:"good"`
	Verdict verify.Verdict `json:"verdict"`
	// Seconds from the first grant to the finding, or to the end of the run if there was none.
	Seconds float64 `json:"seconds"`
	Grants  int     `json:"grants"` // until the finding, or the end of the run
	Calls   int     `json:"calls"`
	Error   string  `json:"error,omitempty"`
}

// verifySelfTest tests locks that are broken on purpose, and one that is not. Each broken lock
// must be caught, by a check that is meant to catch it. The other one must pass.
func (a *app) verifySelfTest(ctx context.Context, seed uint64, rarity int) error {
	if rarity < 1 || rarity > maxRarity {
		return usageError("rarity", "%d: must be 1 to %d", rarity, maxRarity)
	}
	broken := append([]runner.Broken{{Name: "nothing is broken"}}, runner.Faults()...)
	trials := make([]trial, len(broken))
	atOnce, rate := 1, 0 // a rare fault needs the whole capacity of the machine
	if rarity <= often {
		atOnce, rate = 8, oftenRate
	}
	var work sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i, b := range broken {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			trials[i] = playTrial(ctx, b, seed, rarity, rate)
			a.warn("%s: %s", b.Name, trials[i].says())
		})
	}
	work.Wait()
	missed := 0
	for _, t := range trials {
		if !t.Good {
			missed++
		}
	}
	if err := a.printTrials(trials, missed); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case missed > 0:
		return exitError(exitViolation)
	}
	return nil
}

// playTrial runs until the fault is found.
func playTrial(ctx context.Context, b runner.Broken, seed uint64, rarity, rate int) trial {
	t := trial{Name: b.Name, Want: b.Caught}
	if ctx.Err() != nil {
		t.Error = context.Cause(ctx).Error()
		return t
	}
	long := soundTime
	if len(b.Caught) > 0 {
		long, t.Rarity = trialTime, rarity
	}
	if b.Fixed > 0 {
		t.Rarity = b.Fixed
	}
	found := make(chan struct{})
	var once sync.Once
	var mu sync.Mutex // guards the counts
	var begun time.Time
	var seconds float64
	var grants, calls, grantsThen, callsThen int
	referee := verify.NewReferee(ctx, verify.Options{}, func(check string, _ verify.Finding) {
		if slices.Contains(b.Caught, check) {
			once.Do(func() {
				mu.Lock()
				seconds, grantsThen, callsThen = time.Since(begun).Seconds(), grants, calls
				mu.Unlock()
				close(found)
			})
		}
	})
	err := runner.Run(ctx, runner.Config{
		URL: "memory://", For: long, Seed: seed, Profile: runner.Torture, TTL: trialTTL, Break: b.Break, Rarity: rarity, Rate: rate, Found: found,
		Record: func(e history.Event) error {
			mu.Lock()
			switch {
			case e.Kind == history.KindCall:
				calls++
			case e.Kind == history.KindReturn && e.Outcome == history.OK && e.Token > 0:
				grants++
				if begun.IsZero() {
					begun = time.Now()
				}
			}
			mu.Unlock()
			return referee.Add(e)
		},
	})
	r := referee.Report()
	if err != nil {
		t.Error = err.Error()
		return t
	}
	t.Verdict = r.Verdict
	for _, c := range r.Checks {
		if c.Verdict == verify.Violation {
			t.Caught = append(t.Caught, c.ID)
		}
	}
	select {
	case <-found:
		t.Good, t.Seconds, t.Grants, t.Calls = true, seconds, grantsThen, callsThen
	default:
		t.Good = len(b.Caught) == 0 && r.Verdict == verify.Pass
		t.Seconds, t.Grants, t.Calls = r.Seconds, r.Counts.Grants, r.Counts.Calls
	}
	return t
}

// says describes the outcome.
func (t *trial) says() string {
	much := fmt.Sprintf("%.1f s and %d grants", t.Seconds, t.Grants)
	switch {
	case t.Error != "":
		return "could not be played: " + t.Error
	case len(t.Want) == 0:
		return fmt.Sprintf("%s after %s", t.Verdict, much)
	case t.Good:
		return fmt.Sprintf("one in %d is found after %s by %s", t.Rarity, much, strings.Join(t.Caught, ", "))
	default:
		return fmt.Sprintf("MISSED in %s: one in %d; found by %q, not by %s", much, t.Rarity, t.Caught, strings.Join(t.Want, " or "))
	}
}

func (a *app) printTrials(trials []trial, missed int) error {
	if a.json {
		return writeJSON(a.stdout, map[string]any{"trials": trials, "missed": missed})
	}
	verdict := "PASS"
	if missed > 0 {
		verdict = fmt.Sprintf("%d OF %d FAILED", missed, len(trials))
	}
	if !a.quiet {
		for _, t := range trials {
			fmt.Fprintf(a.stdout, "  %-65s %s\n", t.Name, t.says())
		}
		fmt.Fprintf(a.stdout, "\nEach fault is of one grant, wait or release in so many, on a store in the memory with leases of %s.\n"+
			"On a slower store a minute has fewer grants, and finds only what is less rare: the report of a run has its number of grants.\n\n", trialTTL)
	}
	_, err := fmt.Fprintln(a.stdout, verdict)
	return err
}
