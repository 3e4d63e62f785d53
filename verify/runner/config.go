package runner

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/verify/history"
)

// Config configures a run.
type Config struct {
	// URL of the backend. Required, unless Cluster or Servers is set.
	URL string
	// Cluster starts servers for the run, which the run then stops and crashes: one of
	// [Clusters]. Every change that they answered is on their disks, or on those of a majority:
	// three of etcd, ZooKeeper or Consul, five for redlock, one of the others. The programs have
	// to be on this machine.
	//
	// On Linux with gcc the servers get disks that are slow at times and that lose in a crash
	// what was not synced. The wall clocks of servers in C and Java jump, as far as the
	// backends promise that locks stay exclusive. Elsewhere the run leaves that out, and the
	// history says so. Optional.
	Cluster string
	// Servers are started already: the run stops and crashes them like those of Cluster, and
	// leaves them intact. Optional.
	Servers *Servers
	// Programs are the commands of servers for Cluster that are not in $PATH, by the usual name
	// of the program: "consul", "holdfast". Optional.
	Programs map[string][]string
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
	// Break wraps a backend that lives in this process, for locks that are broken on purpose.
	// Optional.
	Break func(b backend.Backend, rarity int) backend.Backend
	// Rarity is the argument of Break. Default: 1. Optional.
	Rarity int
	// Found ends the run when it is closed, without releasing anything: the fault that was
	// searched for has been found. Optional.
	Found <-chan struct{}
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
	case c.Cluster != "" && (c.URL != "" || !slices.Contains(Clusters(), c.Cluster)):
		return &backend.InvalidError{Field: "local-cluster", Value: fmt.Sprintf("%.20q", c.Cluster), Bound: "one of " + strings.Join(Clusters(), ", ") + ", and no URL"}
	case c.Servers != nil && (c.URL != "" || c.Cluster != ""):
		return &backend.InvalidError{Field: "servers", Value: "set", Bound: "no URL and no local-cluster beside them"}
	case c.TTL < 0 || c.TTL > time.Minute:
		return &backend.InvalidError{Field: "ttl", Value: c.TTL.String(), Bound: "at most 1m"}
	case c.Rate < 0 || c.Rate > maxRate:
		return &backend.InvalidError{Field: "rate", Value: strconv.Itoa(c.Rate), Bound: fmt.Sprintf("1 to %d", maxRate)}
	case c.Record == nil:
		return &backend.InvalidError{Field: "record", Value: "nil", Bound: "a function"}
	case len(c.Worker) == 0 && !inProcess(c.URL):
		return &backend.InvalidError{Field: "worker", Value: "[]", Bound: "the command of a worker"}
	case c.Break != nil && !inProcess(c.URL):
		return &backend.InvalidError{Field: "break", Value: "set", Bound: "a backend that lives in this process"}
	}
	return nil
}

// found reports whether Found has ended the run.
func (c *Config) found() bool {
	select {
	case <-c.Found:
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
