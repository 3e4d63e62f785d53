package runner

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/verify/history"
)

// Config configures a run.
type Config struct {
	// URL of the backend. Required.
	URL string
	// For is how long there are faults, 1 s to 10 minutes. The rest of the run, until
	// everything is released, takes a few TTLs more. Default: 60 s. Optional.
	For time.Duration
	// Seed of the plan. Default: random, never 0. Optional.
	Seed uint64
	// Profile. Default: Standard. Optional.
	Profile Profile
	// TTL of the leases. Default: 2 s, or the backend's minimum. Optional.
	TTL time.Duration
	// Worker is the command that runs [Worker]: this program with its hidden subcommand.
	// Required, except for backends that live in this process.
	Worker []string
	// Replay is the command that replays the run, for the history. Optional.
	Replay string
	// Rate is how many locks are acquired per second at most. On a slow machine or backend it
	// is less. Default: that of the profile. Optional.
	Rate int
	// Record is called with each event of the history, one at a time. It may block for a while,
	// and the workers then wait. An error ends the run. Required.
	Record func(history.Event) error
	// Log receives progress messages for people. Optional.
	Log func(text string)

	// Of tests: faults of servers, beside those of the workers, until its context ends; a wrapper of a backend that
	// lives in this process; and what ends the run when it is closed, without releasing anything.
	disturb func(context.Context, *run)
	breaks  func(backend.Backend) backend.Backend
	found   <-chan struct{}
}

// maxRate is more than two processors can do.
const maxRate = 100_000

func (c *Config) check() error {
	c.For = cmp.Or(c.For, time.Minute)
	c.Profile = cmp.Or(c.Profile, Standard)
	for c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	if c.Log == nil {
		c.Log = func(string) {}
	}
	switch {
	case c.For < time.Second || c.For > 10*time.Minute:
		return &backend.InvalidError{Field: "for", Value: c.For.String(), Bound: "1s to 10m"}
	case !slices.Contains(Profiles(), c.Profile):
		return &backend.InvalidError{Field: "profile", Value: fmt.Sprintf("%.20q", c.Profile), Bound: "gentle, standard, torture or jepsen"}
	case c.Profile == Jepsen && inProcess(c.URL):
		return &backend.InvalidError{Field: "profile", Value: "jepsen", Bound: "another one: the workers of this backend are one process, which cannot be stopped"}
	case c.TTL < 0 || c.TTL > time.Minute:
		return &backend.InvalidError{Field: "ttl", Value: c.TTL.String(), Bound: "at most 1m"}
	case c.Rate < 0 || c.Rate > maxRate:
		return &backend.InvalidError{Field: "rate", Value: strconv.Itoa(c.Rate), Bound: fmt.Sprintf("1 to %d", maxRate)}
	case c.Record == nil:
		return &backend.InvalidError{Field: "record", Value: "nil", Bound: "a function"}
	case len(c.Worker) == 0 && !inProcess(c.URL):
		return &backend.InvalidError{Field: "worker", Value: "[]", Bound: "the command of a worker"}
	}
	return nil
}

// isFound reports whether the run was ended because a fault was found.
func (c *Config) isFound() bool {
	select {
	case <-c.found:
		return true
	default:
		return false
	}
}

// ttl returns the TTL of the leases on a backend.
func (c *Config) ttl(caps backend.Capabilities) (time.Duration, error) {
	if c.TTL == 0 {
		return max(2*time.Second, caps.MinTTL), nil
	}
	if c.TTL < caps.MinTTL || caps.MaxTTL > 0 && c.TTL > caps.MaxTTL {
		return 0, &backend.InvalidError{Field: "ttl", Value: c.TTL.String(), Bound: fmt.Sprintf("within the bounds of the %s backend, %s to %s", caps.Name, caps.MinTTL, caps.MaxTTL)}
	}
	return c.TTL, nil
}
