package open

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/server/embedded"
)

// Node starts a node of a cluster and returns while it may still wait for the cluster. Until the
// node serves, calls of the backend fail with a *backend.UnavailableError that says what the node
// waits for. Closing the backend stops the node.
//
// Errors: those of embedded.Open.
func Node(cfg embedded.Config) (backend.Backend, *embedded.Etcd, error) {
	conf := etcdlock.Config{MinTTL: embedded.MinTTL, Logger: cfg.Logger}
	caps, err := conf.Capabilities()
	if err != nil {
		return nil, nil, err
	}
	node, err := embedded.Open(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("start the embedded etcd: %w", err)
	}
	return &waitingNode{node: node, conf: conf, caps: caps}, node, nil
}

// waitingNode is a backend whose store becomes ready later.
type waitingNode struct {
	node *embedded.Etcd
	conf etcdlock.Config
	caps backend.Capabilities

	mu     sync.Mutex
	inner  *etcdlock.Backend // nil until the node serves
	closed bool
}

// get returns the backend on the node, once the node serves.
func (b *waitingNode) get(op string) (*etcdlock.Backend, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fmt.Errorf("%s: %s: %w", b.caps.Name, op, backend.ErrClosed)
	}
	if b.inner != nil {
		return b.inner, nil
	}
	select {
	case <-b.node.Ready():
	default:
		return nil, &backend.UnavailableError{Backend: b.caps.Name, Op: op, Err: errors.New(b.node.Waiting())}
	}
	inner, err := etcdlock.New(b.node.Client(), b.conf)
	if err != nil {
		return nil, err
	}
	b.inner = inner
	return inner, nil
}

// Capabilities returns those of etcdlock with the node's configuration.
func (b *waitingNode) Capabilities() backend.Capabilities { return b.caps }

// OpenSession calls that of etcdlock.
func (b *waitingNode) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	in, err := b.get("open session")
	if err != nil {
		return err
	}
	return in.OpenSession(ctx, req)
}

// EndSession calls that of etcdlock.
func (b *waitingNode) EndSession(ctx context.Context, id backend.SessionID) error {
	in, err := b.get("end session")
	if err != nil {
		return err
	}
	return in.EndSession(ctx, id)
}

// Acquire calls that of etcdlock.
func (b *waitingNode) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	in, err := b.get("acquire")
	if err != nil {
		return backend.Grant{}, err
	}
	return in.Acquire(ctx, req)
}

// Renew calls that of etcdlock.
func (b *waitingNode) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	in, err := b.get("renew")
	if err != nil {
		return backend.RenewResult{}, err
	}
	return in.Renew(ctx, req)
}

// Release calls that of etcdlock.
func (b *waitingNode) Release(ctx context.Context, req backend.ReleaseRequest) error {
	in, err := b.get("release")
	if err != nil {
		return err
	}
	return in.Release(ctx, req)
}

// Inspect calls that of etcdlock.
func (b *waitingNode) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	in, err := b.get("inspect")
	if err != nil {
		return backend.LockInfo{}, err
	}
	return in.Inspect(ctx, name)
}

// List calls that of etcdlock.
func (b *waitingNode) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	in, err := b.get("list")
	if err != nil {
		return backend.ListPage{}, err
	}
	return in.List(ctx, req)
}

// Break calls that of etcdlock.
func (b *waitingNode) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	in, err := b.get("break")
	if err != nil {
		return backend.BreakResult{}, err
	}
	return in.Break(ctx, req)
}

// Watch calls that of etcdlock.
func (b *waitingNode) Watch(ctx context.Context, req backend.WatchRequest, deliver func(backend.Event)) error {
	in, err := b.get("watch")
	if err != nil {
		return err
	}
	return in.Watch(ctx, req, deliver)
}

// Close closes the backend, then its node.
func (b *waitingNode) Close() error {
	b.mu.Lock()
	inner := b.inner
	b.closed = true
	b.mu.Unlock()
	var err error
	if inner != nil {
		err = inner.Close()
	}
	return errors.Join(err, b.node.Close())
}
