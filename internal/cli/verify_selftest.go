package cli

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/verify"
	"github.com/holdfast-io/holdfast/verify/history"
	"github.com/holdfast-io/holdfast/verify/play"
)

// atOnce is how many broken locks are played on at once: they wait more than they work.
const atOnce = 8

// trial is what became of one lock of the self-test.
type trial struct {
	Name    string         `json:"name"`
	Want    []string       `json:"want,omitempty"` // one of these checks
	Caught  []string       `json:"caught"`
	Good    bool           `json:"good"`
	Verdict verify.Verdict `json:"verdict"`
	Seconds float64        `json:"seconds"`
	Error   string         `json:"error,omitempty"`
}

// verifySelfTest plays on locks that are broken on purpose, and on one that is not. The
// broken ones must be caught, each by a check that is meant to; the other must pass.
func (a *app) verifySelfTest(ctx context.Context, seed uint64) error {
	broken := append([]play.Broken{{Name: "nothing is broken"}}, play.Faults()...)
	trials := make([]trial, len(broken))
	var work sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i, b := range broken {
		work.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			trials[i] = tryBroken(ctx, b, seed)
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

// plays is how often a broken lock is played on at most: on a busy machine so little may happen
// in one play that the fault does not show.
const plays = 3

// tryBroken plays until the fault is found; on a lock that is not broken once.
func tryBroken(ctx context.Context, b play.Broken, seed uint64) trial {
	t := trial{Name: b.Name, Want: b.Caught}
	begun := time.Now()
	for n := range uint64(plays) {
		t.play(ctx, b, seed+n)
		t.Seconds = time.Since(begun).Seconds()
		if t.Good || t.Error != "" || len(b.Caught) == 0 {
			break
		}
	}
	return t
}

func (t *trial) play(ctx context.Context, b play.Broken, seed uint64) {
	if ctx.Err() != nil {
		t.Error = context.Cause(ctx).Error()
		return
	}
	var text bytes.Buffer
	err := play.Run(ctx, play.Config{URL: "memory://", For: 4 * time.Second, Seed: seed, Profile: play.Torture, TTL: time.Second, Break: b.Break, History: &text})
	if err != nil {
		t.Error = err.Error()
		return
	}
	h, err := history.Read(&text)
	if err != nil {
		t.Error = err.Error()
		return
	}
	r := verify.Judge(ctx, h, verify.Options{})
	t.Verdict, t.Caught = r.Verdict, nil
	for _, c := range r.Checks {
		if c.Verdict == verify.Violation {
			t.Caught = append(t.Caught, c.ID)
		}
	}
	if len(b.Caught) == 0 {
		t.Good = r.Verdict == verify.Pass
	} else {
		t.Good = slices.ContainsFunc(b.Caught, func(id string) bool { return slices.Contains(t.Caught, id) })
	}
}

// says is the outcome in words.
func (t *trial) says() string {
	switch {
	case t.Error != "":
		return "could not be played: " + t.Error
	case len(t.Want) == 0:
		return string(t.Verdict)
	case t.Good:
		return fmt.Sprintf("caught in %.0f s by %s", t.Seconds, strings.Join(t.Caught, ", "))
	default:
		return fmt.Sprintf("MISSED: caught by %q, not by %s", t.Caught, strings.Join(t.Want, " or "))
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
			fmt.Fprintf(a.stdout, "  %-55s %s\n", t.Name, t.says())
		}
	}
	_, err := fmt.Fprintln(a.stdout, verdict)
	return err
}
