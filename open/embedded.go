package open

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/server/embedded"
)

// Embedded starts an etcd in this process and returns a backend on it. Closing the backend stops
// the etcd.
//
// Errors: those of embedded.Start and etcdlock.New.
func Embedded(ctx context.Context, cfg embedded.Config) (backend.Backend, error) {
	node, err := embedded.Start(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start the embedded etcd: %w", err)
	}
	b, err := etcdlock.New(node.Client(), etcdlock.Config{MinTTL: embedded.MinTTL, Logger: cfg.Logger})
	if err != nil {
		return nil, errors.Join(err, node.Close())
	}
	return &withNode{Backend: b, node: node}, nil
}

// withNode is a backend that owns its store.
type withNode struct {
	backend.Backend
	node *embedded.Etcd
}

// Close closes the backend, then its store.
func (b *withNode) Close() error { return errors.Join(b.Backend.Close(), b.node.Close()) }

func openEmbedded(ctx context.Context, raw string, o Options) (backend.Backend, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host != "" || u.User != nil || !strings.HasPrefix(u.Path, "/") || u.RawQuery != "" || u.Fragment != "" {
		return nil, &backend.InvalidError{Field: "backend", Value: `"embedded://…"`, Bound: "embedded:///path/of/the/data/folder, without anything more"}
	}
	return Embedded(ctx, embedded.Config{DataDir: u.Path, Logger: o.Logger})
}
