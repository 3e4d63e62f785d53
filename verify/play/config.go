package play

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Config says what to play.
type Config struct {
	// URL of the backend. Required, without Cluster and Servers.
	URL string
	// Cluster starts servers for the run, which it stops and crashes then: one of
	// [Clusters]. They have on disk what they answered, or a majority has: three of etcd,
	// ZooKeeper or Consul, five for redlock, one of the others. The programs have to be on
	// this machine. Optional.
	Cluster string
	// Servers are started already: the run hurts them as those of Cluster, and leaves them
	// whole. Optional.
	Servers *Servers
	// Programs are commands of servers for Cluster that are not in $PATH, by the name that
	// the program has as a rule: "consul", "holdfast". Optional.
	Programs map[string][]string
	// For is how long there are faults, 1 s to 10 minutes; what follows until all is given
	// back takes a few TTL more. Default: 60 s. Optional.
	For time.Duration
	// Seed of the plan. Default: random, never 0. Optional.
	Seed uint64
	// Profile. Default: Standard. Optional.
	Profile Profile
	// TTL of the leases. Default: 2 s, or the least that the backend takes. Optional.
	TTL time.Duration
	// Worker is the command that runs [Worker]: this program with its hidden subcommand.
	// Required, except for backends that live in this process.
	Worker []string
	// Replay is the command that plays the same again, for the history. Optional.
	Replay string
	// History gets the events as lines. Required.
	History io.Writer
	// Log is told what happens, for people. Optional.
	Log func(text string)
	// Break wraps a backend that lives in this process: for locks that are broken on
	// purpose. Optional.
	Break func(backend.Backend) backend.Backend
}

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
	case c.History == nil:
		return &backend.InvalidError{Field: "history", Value: "nil", Bound: "a writer"}
	case len(c.Worker) == 0 && !inProcess(c.URL):
		return &backend.InvalidError{Field: "worker", Value: "[]", Bound: "the command of a worker"}
	case c.Break != nil && !inProcess(c.URL):
		return &backend.InvalidError{Field: "break", Value: "set", Bound: "a backend that lives in this process"}
	}
	return nil
}

// ttl is what the leases get on a backend.
func (c *Config) ttl(caps backend.Capabilities) (time.Duration, error) {
	if c.TTL == 0 {
		return max(2*time.Second, caps.MinTTL), nil
	}
	if c.TTL < caps.MinTTL || caps.MaxTTL > 0 && c.TTL > caps.MaxTTL {
		return 0, &backend.InvalidError{Field: "ttl", Value: c.TTL.String(), Bound: fmt.Sprintf("what the %s backend takes: %s to %s", caps.Name, caps.MinTTL, caps.MaxTTL)}
	}
	return c.TTL, nil
}
