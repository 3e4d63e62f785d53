package zklock

import (
	"context"
	"errors"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// configNode lists the servers of the ensemble. There is one since the version that has container nodes. It is empty
// where one server runs alone.
const configNode = "/zookeeper/config"

// Examine checks whether the user lacks a right, and reads how many servers there are. It implements backend.Examiner.
func (b *Backend) Examine(ctx context.Context) ([]backend.Finding, error) {
	ctx, done, err := b.sessions.Begin(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := b.controlLink(ctx)
	if err != nil {
		return nil, b.fail(ctx, "examine", err, false)
	}
	lacks, err := b.lacking(ctx, l)
	if err != nil {
		return nil, b.fail(ctx, "examine", err, false)
	}
	out := backend.Findings(false, lacks...)
	servers, err := call(ctx, l, func() (int, error) {
		data, _, err := l.conn.Get(configNode)
		return strings.Count("\n"+string(data), "\nserver."), err
	})
	switch {
	case errors.Is(err, zk.ErrNoNode):
		out = append(out, backend.Finding{Text: "the ensemble has no container nodes, because it is older than ZooKeeper 3.5: the parent nodes of unused locks are not removed"})
	case errors.Is(err, zk.ErrNoAuth):
		out = append(out, backend.Finding{Usual: true, Text: "the user may not read " + configNode + ": the number of servers was not checked"})
	case err != nil:
		return nil, b.fail(ctx, "examine", err, false)
	case servers <= 1:
		out = append(out, backend.Finding{Usual: true, Text: "the server runs standalone: while it is unavailable, no lock can be acquired or renewed"})
	}
	return out, nil
}

// lacking returns a finding if the user lacks a right. It asks for changes in a transaction whose last
// operation always fails, because it creates a node once more, so that none is made. The ensemble checks
// the rights for each operation first.
func (b *Backend) lacking(ctx context.Context, l *link) ([]string, error) {
	create := func(path string) *zk.CreateRequest { return &zk.CreateRequest{Path: path, Acl: b.cfg.acl()} }
	probe := func(parent string, more ...any) error {
		ops := append([]any{create(parent + "/rights")}, more...)
		_, err := call(ctx, l, func() ([]zk.MultiResponse, error) { return l.conn.Multi(append(ops, create(parent+"/rights"))...) })
		return err
	}
	other := b.locksPath() + "/rights-too"
	right := ""
	switch err := probe(b.locksPath(), create(other), &zk.DeleteRequest{Path: other, Version: -1}); {
	case errors.Is(err, zk.ErrNoAuth):
		right = below + b.cfg.Path
	case errors.Is(err, zk.ErrNoNode): // nothing was made yet
		if errors.Is(probe(b.cfg.Path), zk.ErrNoAuth) {
			right = "to create nodes (c) below " + b.cfg.Path
		}
	case !errors.Is(err, zk.ErrNodeExists):
		return nil, err
	}
	if right == "" {
		return nil, nil
	}
	return []string{connect.Lacks(name, right, nil).Error()}, nil
}
