//go:build unix

package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/internal/launch"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/open"
)

// cluster has servers that this run started, and may stop and crash. Their data is on disk, in
// a folder that is deleted with them.
type cluster struct {
	url      string
	dir      string
	programs map[string][]string // see Config.Programs
	members  []*member
	inTurn   bool // each server needs those before it
	shims    shims
}

// member is one server. Its URL is that of a backend of its own; empty: it serves when it listens.
type member struct {
	*launch.Server

	// trace is how long operations in progress at the crash of the server may delay other
	// clients.
	trace  time.Duration
	behind time.Duration // by how much its clock was stepped back
}

// startCluster starts the servers of a kind with the programs of this machine.
func startCluster(ctx context.Context, kind string, programs map[string][]string) (*cluster, error) {
	dir, err := os.MkdirTemp("", "holdfast-verify-cluster-")
	if err != nil {
		return nil, fmt.Errorf("verify: a folder for the servers: %w", err)
	}
	c := &cluster{dir: dir, programs: programs}
	if err = c.prepare(ctx, kind); err == nil {
		err = c.addShims(ctx)
	}
	for _, m := range c.members {
		if err == nil {
			err = m.start()
		}
		if err == nil && c.inTurn {
			err = m.ready(ctx)
		}
	}
	for _, m := range c.members {
		if err == nil {
			err = m.ready(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.end())
	}
	return c, nil
}

// Clusters lists the values that Config.Cluster may have.
func Clusters() []string { return slices.Sorted(maps.Keys(kinds())) }

// start starts the server, the first time or after its end.
func (m *member) start() error {
	if err := m.Launch(); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	return nil
}

// ready waits until the server serves, and checks that it lives.
func (m *member) ready(ctx context.Context) error {
	err := m.Ready(ctx)
	if err == nil {
		// A try may take longer than Await gives it: serves has a patience of its own.
		err = m.Process().Await(ctx, launch.StartTimeout, func(context.Context) error { return m.serves(ctx) })
	}
	if err != nil {
		return fmt.Errorf("verify: %s does not serve: %w", m.Name, err)
	}
	return nil
}

// serves requests a lock from the server, if it is a backend by itself: many servers listen
// long before they can serve.
func (m *member) serves(ctx context.Context) error {
	if m.URL == "" {
		return nil
	}
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b, err := open.URL(ctx, m.URL, open.Options{})
	if err != nil {
		return err
	}
	locks, err := holdfast.New(b, holdfast.Config{TTL: max(2*time.Second, b.Capabilities().MinTTL), Owner: "verify", Timeout: patience})
	if err == nil {
		err = locks.Do(ctx, "holdfast-verify-up", func(context.Context, *holdfast.Lock) error { return nil })
		_ = locks.Close(ctx) // the rest ends with its TTL
	}
	_ = b.Close()
	return err
}

// revive starts a server that has crashed, and waits until it serves. Remains of the former
// process may prevent its start for a moment.
func (m *member) revive(ctx context.Context) error {
	end := time.Now().Add(launch.StartTimeout)
	for {
		err := m.start()
		if err == nil {
			err = m.ready(ctx)
		}
		if !errors.Is(err, launch.ErrEnded) || time.Now().After(end) || !retry.Pause(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// end kills the servers and deletes their data.
func (c *cluster) end() error {
	var err error
	for _, m := range slices.Backward(c.members) {
		err = errors.Join(err, m.Kill())
	}
	err = errors.Join(err, c.settleDisks())
	if e := os.RemoveAll(c.dir); e != nil {
		err = errors.Join(err, fmt.Errorf("verify: remove the folder of the servers: %w", e))
	}
	return err
}
