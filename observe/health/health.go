// Package health tells whether locks can be had: healthy, degraded or unhealthy, in a
// program and over HTTP.
//
//	check, err := health.New(locks, b, health.Config{})
//	http.Handle("/healthz/locks", check)
//	report := check.Check(ctx)
//
// A check takes a lock and gives it back, shared, so that checks of a whole fleet are not in
// each other's way, and of one name, so that they leave no more than one lock does. It asks the servers behind the backend
// which of them are away (backend.Redundant), and looks for what weakens them
// (backend.Examiner). Degraded says that locks can be had, but slowly, or with a minority
// of the servers away, or with something that should be seen to. It is not a reason to
// take a program out of service; unhealthy is.
package health

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

// Status is how it stands.
type Status string

// The statuses.
const (
	Healthy   Status = "healthy"
	Degraded  Status = "degraded"  // locks can be had; Report.Found says what is wrong
	Unhealthy Status = "unhealthy" // none could be had; Report.Err says why
)

// Config configures a Checker. The zero value is good.
type Config struct {
	// Timeout bounds a check. Default: 5 s. Optional.
	Timeout time.Duration
	// Slow is from where on taking and giving back a lock counts as slow. Default:
	// 250 ms. Optional.
	Slow time.Duration
	// Samples are how many locks are taken, one after the other; the fastest counts.
	// Default: 1. Optional.
	Samples int
	// Fresh is for how long ServeHTTP gives the result of a check to others: who asks it
	// often costs the backend no more. Default: 1 s. Optional.
	Fresh time.Duration
}

// Report is what a check found.
type Report struct {
	Status  Status
	Backend string // its name: "redlock"
	// Took is how long it took to take a lock and give it back; 0 when that failed.
	Took time.Duration
	// Found is what is wrong and does not keep locks from being had, a sentence each.
	Found []string
	// Err is why none could be had. It has no secrets, but addresses.
	Err error
}

const (
	defaultTimeout = 5 * time.Second
	defaultSlow    = 250 * time.Millisecond
	defaultFresh   = time.Second
)

// Checker checks one client's backend. Its methods may be called at once.
type Checker struct {
	locks  *holdfast.Client
	b      backend.Backend
	cfg    Config
	shared shared
}

// New makes a checker. b is the backend of the client itself, not one that wraps it: it is
// asked what it knows of its servers. Nothing is sent yet, and nothing is to be closed.
//
// Errors: *holdfast.InvalidError for a field of cfg below zero.
func New(locks *holdfast.Client, b backend.Backend, cfg Config) (*Checker, error) {
	for _, f := range []struct {
		name  string
		value *time.Duration
		unset time.Duration
	}{{"Timeout", &cfg.Timeout, defaultTimeout}, {"Slow", &cfg.Slow, defaultSlow}, {"Fresh", &cfg.Fresh, defaultFresh}} {
		if *f.value < 0 {
			return nil, &holdfast.InvalidError{Field: "Config." + f.name, Value: f.value.String(), Bound: "0s or more"}
		}
		if *f.value == 0 {
			*f.value = f.unset
		}
	}
	if cfg.Samples < 0 {
		return nil, &holdfast.InvalidError{Field: "Config.Samples", Value: strconv.Itoa(cfg.Samples), Bound: "0 or more"}
	}
	cfg.Samples = max(cfg.Samples, 1)
	return &Checker{locks: locks, b: b, cfg: cfg}, nil
}

// Check checks, for no longer than Config.Timeout, and than ctx lets it. A check that was
// cut short is unhealthy.
func (c *Checker) Check(ctx context.Context) Report {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	r := Report{Status: Healthy, Backend: c.locks.Capabilities().Name}
	took, err := c.pair(ctx)
	switch {
	case errors.Is(err, holdfast.ErrHeld): // the store has decided that: locks can be had
		r.Found = append(r.Found, "the lock of the check could not be had: "+err.Error())
	case err != nil:
		r.Status, r.Err = Unhealthy, err
		return r
	}
	r.Took = took
	if r.Took > c.cfg.Slow {
		r.Found = append(r.Found, fmt.Sprintf("it is slow: taking and giving back a lock took %s", r.Took.Round(time.Millisecond)))
	}
	if b, ok := c.b.(backend.Redundant); ok {
		r.Found = append(r.Found, orError("which servers are away is not known", b.Away, ctx)...)
	}
	if b, ok := c.b.(backend.Examiner); ok {
		r.Found = append(r.Found, orError("the store could not be looked at", b.Examine, ctx)...)
	}
	if len(r.Found) > 0 {
		r.Status = Degraded
	}
	return r
}

// orError is what ask found, or that it could not look.
func orError(failed string, ask func(context.Context) ([]string, error), ctx context.Context) []string { //nolint:revive // the context is for the function
	found, err := ask(ctx)
	if err != nil {
		found = append(found, failed+": "+err.Error())
	}
	return found
}

// Lock is the name of the lock that checks take.
const Lock = "holdfast-health"

// pair takes the lock and gives it back.
func (c *Checker) pair(ctx context.Context) (time.Duration, error) {
	best := time.Duration(0)
	for i := range c.cfg.Samples {
		begun := time.Now()
		lock, err := c.locks.TryAcquire(ctx, Lock, holdfast.Shared(), holdfast.Note("a health check"))
		if err == nil {
			err = lock.Release(ctx)
		}
		if err != nil {
			return 0, err
		}
		if took := time.Since(begun); i == 0 || took < best {
			best = took
		}
	}
	return best, nil
}
