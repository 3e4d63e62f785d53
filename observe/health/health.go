// Package health reports whether locks can be acquired: healthy, degraded or unhealthy, in a
// program and over HTTP.
//
//	check, err := health.New(locks, b, health.Config{})
//	http.Handle("/healthz/locks", check)
//	report := check.Check(ctx)
//
// A check acquires a lock and releases it. The lock is shared, so that the checks of a whole fleet
// do not block each other, and it has a fixed name, so that they leave no more than one lock does.
// The check asks the servers behind the backend which of them are unavailable (backend.Redundant),
// and for anything that weakens them (backend.Examiner). Degraded means that locks can be acquired,
// but slowly, or with a minority of the servers unavailable, or with a finding that needs
// attention. It is not a reason to take a program out of service; unhealthy is.
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

// Status is the result of a check.
type Status string

// The statuses.
const (
	Healthy   Status = "healthy"
	Degraded  Status = "degraded"  // locks can be acquired; Report.Found says what is wrong
	Unhealthy Status = "unhealthy" // no lock could be acquired; Report.Err says why
)

// Config configures a Checker. The zero value is ready to use.
type Config struct {
	// Timeout bounds a check. Default: 5 s. Optional.
	Timeout time.Duration
	// Slow is the duration of one acquire and release above which a check is degraded. Default: 250
	// ms. Optional.
	Slow time.Duration
	// Samples is how many locks are acquired, one after the other; the fastest counts. Default: 1.
	// Optional.
	Samples int
	// Fresh is how long ServeHTTP reuses the result of a check, so that frequent requests cost the
	// backend no more. Default: 1 s. Optional.
	Fresh time.Duration
}

// Report is the result of a check in detail.
type Report struct {
	Status  Status
	Backend string // its name: "redlock"
	// Took is how long one acquire and release took; 0 if that failed.
	Took time.Duration
	// Found are the problems that do not prevent locks from being acquired, a sentence each. If the store
	// refuses (holdfast.ErrRefused), they name what is missing.
	Found []string
	// Notes are facts about the store that are usual, and weaken nothing: see backend.Finding.
	Notes []string
	// Err is why no lock could be acquired. It contains no secrets, but may contain addresses.
	Err error
}

const (
	defaultTimeout = 5 * time.Second
	defaultSlow    = 250 * time.Millisecond
	defaultFresh   = time.Second
)

// Checker checks one client's backend. Its methods are safe for concurrent use.
type Checker struct {
	locks  *holdfast.Client
	b      backend.Backend
	cfg    Config
	shared shared
}

// New returns a checker. b must be the backend of the client itself, not one that wraps it, because
// it is asked about its servers. New sends nothing, and there is nothing to close.
//
// Errors: *holdfast.InvalidError for a field of cfg below zero, and without a client or its backend.
func New(locks *holdfast.Client, b backend.Backend, cfg Config) (*Checker, error) {
	if locks == nil {
		return nil, &holdfast.InvalidError{Field: "locks", Value: "nil", Bound: "a client"}
	}
	if b == nil {
		return nil, &holdfast.InvalidError{Field: "backend", Value: "nil", Bound: "that of the client"}
	}
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

// Check runs one check, which ends after Config.Timeout or with ctx. A check that was cut short is
// unhealthy.
func (c *Checker) Check(ctx context.Context) Report {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	r := Report{Status: Healthy, Backend: c.locks.Capabilities().Name}
	took, err := c.pair(ctx)
	switch {
	case errors.Is(err, holdfast.ErrHeld) && ctx.Err() == nil: // the store decided that, so locks can be acquired
		r.Found = append(r.Found, "the lock of the health check could not be acquired: "+err.Error())
	case err != nil:
		r.Status, r.Err = Unhealthy, err
		if b, ok := c.b.(backend.Examiner); ok && errors.Is(err, holdfast.ErrRefused) {
			examine(ctx, &r, b)
		}
		return r
	}
	r.Took = took
	if r.Took > c.cfg.Slow {
		r.Found = append(r.Found, fmt.Sprintf("it is slow: acquiring and releasing a lock took %s", r.Took.Round(time.Millisecond)))
	}
	if b, ok := c.b.(backend.Redundant); ok {
		away, err := b.Away(ctx)
		r.Found = append(r.Found, away...)
		addFailure(&r, "the unavailable servers could not be determined", err)
	}
	if b, ok := c.b.(backend.Examiner); ok {
		examine(ctx, &r, b)
	}
	if len(r.Found) > 0 {
		r.Status = Degraded
	}
	return r
}

// examine adds to the report what the store finds about itself.
func examine(ctx context.Context, r *Report, b backend.Examiner) {
	found, err := b.Examine(ctx)
	for _, f := range found {
		if f.Usual {
			r.Notes = append(r.Notes, f.Text)
		} else {
			r.Found = append(r.Found, f.Text)
		}
	}
	addFailure(r, "the settings of the store could not be examined", err)
}

// addFailure adds an error of the examination to the report, if there is one.
func addFailure(r *Report, what string, err error) {
	if err != nil {
		r.Found = append(r.Found, what+": "+err.Error())
	}
}

// Lock is the name of the lock that checks acquire.
const Lock = "holdfast-health"

// pair acquires and releases the lock, and returns the time of the fastest sample.
func (c *Checker) pair(ctx context.Context) (time.Duration, error) {
	best := time.Duration(0)
	for i := range c.cfg.Samples {
		begun := time.Now()
		lock, err := c.acquire(ctx)
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

// acquire acquires the lock together with other checks, or, if the backend has no shared locks,
// after them.
func (c *Checker) acquire(ctx context.Context) (*holdfast.Lock, error) {
	note := holdfast.Note("a health check")
	if !c.locks.Capabilities().Shared {
		return c.locks.Acquire(ctx, Lock, note)
	}
	return c.locks.TryAcquire(ctx, Lock, note, holdfast.Shared())
}
