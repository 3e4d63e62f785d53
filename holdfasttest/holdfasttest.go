// Package holdfasttest is for tests of programs that use locks: clients on a store in memory, each as another process
// would have one, and each can be cut off from the store.
//
// All time is that of package time, so a test in a bubble of testing/synctest waits for a TTL in no time.
package holdfasttest

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
)

// Client returns a client on a store of its own, and closes it at the end of the test.
func Client(tb testing.TB) *holdfast.Client {
	tb.Helper()
	return NewStore(tb).Process(holdfast.Config{}).Client
}

// Store is a store in memory. Its methods are safe for concurrent use.
type Store struct {
	tb    testing.TB
	store *memlock.Store
}

// NewStore returns an empty store.
func NewStore(tb testing.TB) *Store {
	tb.Helper()
	return &Store{tb: tb, store: memlock.NewStore()}
}

// Process returns a client, as another process would have one. It is closed at the end of the test. A config that is out
// of bounds fails the test.
func (s *Store) Process(cfg holdfast.Config) *Process {
	s.tb.Helper()
	p := &Process{network: network{Backend: s.store.Open()}}
	cfg.CloseBackend = true
	client, err := holdfast.New(&p.network, cfg)
	if err != nil {
		s.tb.Fatal(err)
	}
	p.Client = client
	s.tb.Cleanup(func() {
		p.Heal()
		_ = p.Close(context.Background())
	})
	return p
}

// Process is a client whose connection to the store can be cut. Its methods are safe for concurrent use.
type Process struct {
	*holdfast.Client

	network network
}

// Cut lets no request and no answer through, as a network that has failed: calls wait for as long as they are allowed to,
// renewals fail, and the locks of this client are lost at their deadlines.
func (p *Process) Cut() { p.network.cut.Store(true) }

// Heal lets new requests through again. Those that were lost stay lost.
func (p *Process) Heal() { p.network.cut.Store(false) }

// network is the way to the store.
type network struct {
	backend.Backend

	cut atomic.Bool
}

// through sends a request, unless the network is cut, and returns its answer, unless it was cut in between.
func through[R any](ctx context.Context, n *network, op string, send func() (R, error)) (R, error) {
	if !n.cut.Load() {
		answer, err := send()
		if !n.cut.Load() {
			return answer, err
		}
	}
	<-ctx.Done()
	var none R
	return none, &backend.UnavailableError{Backend: n.Capabilities().Name, Op: op, MayHold: true, Err: context.Cause(ctx)}
}

func (n *network) OpenSession(ctx context.Context, r backend.SessionRequest) error {
	if lost := r.Lost; lost != nil {
		r.Lost = func(l backend.Loss) {
			if !n.cut.Load() {
				lost(l)
			}
		}
	}
	_, err := through(ctx, n, "open session", func() (struct{}, error) { return struct{}{}, n.Backend.OpenSession(ctx, r) })
	return err
}

func (n *network) EndSession(ctx context.Context, id backend.SessionID) error {
	_, err := through(ctx, n, "end session", func() (struct{}, error) { return struct{}{}, n.Backend.EndSession(ctx, id) })
	return err
}

func (n *network) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	return through(ctx, n, "acquire", func() (backend.Grant, error) { return n.Backend.Acquire(ctx, r) })
}

func (n *network) Renew(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
	return through(ctx, n, "renew", func() (backend.RenewResult, error) { return n.Backend.Renew(ctx, r) })
}

func (n *network) Release(ctx context.Context, r backend.ReleaseRequest) error {
	_, err := through(ctx, n, "release", func() (struct{}, error) { return struct{}{}, n.Backend.Release(ctx, r) })
	return err
}

func (n *network) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	return through(ctx, n, "inspect", func() (backend.LockInfo, error) { return n.Backend.Inspect(ctx, name) })
}

func (n *network) List(ctx context.Context, r backend.ListRequest) (backend.ListPage, error) {
	return through(ctx, n, "list", func() (backend.ListPage, error) { return n.Backend.List(ctx, r) })
}

func (n *network) Break(ctx context.Context, r backend.BreakRequest) (backend.BreakResult, error) {
	return through(ctx, n, "break", func() (backend.BreakResult, error) { return n.Backend.Break(ctx, r) })
}
