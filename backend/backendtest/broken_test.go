package backendtest_test

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/fence"
)

// broken is a store that breaks one rule.
type broken struct {
	name string
	// caught are cases that have to fail, and IDs, each of which has to have a case that fails. Nil: no case fails.
	caught []string
	hooks  hooks
}

func stores() []broken {
	return slices.Concat(soundStores(), restartedStores(), excluding(), counting(), queueing(), expiring(), renewing(), ending(), identifying(), telling(), breakingMany())
}

func keeps(s *memlock.Store) *memlock.Store { return s }

func loses(*memlock.Store) *memlock.Store { return memlock.NewStore() }

func durable(c *backend.Capabilities) { c.Durable = true }

// slowly takes a moment. With a store that answers immediately, one worker may acquire and release free locks for as
// long as it runs, and nothing is handed over.
func slowly(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
	time.Sleep(time.Millisecond)
	return b.Release(ctx, r)
}

func soundStores() []broken {
	return []broken{
		{"keeps all rules", nil, hooks{}},
		{"keeps its data", nil, hooks{restart: keeps, release: slowly, caps: durable}},
		{"keeps its data and does not claim it", nil, hooks{restart: keeps, release: slowly}},
	}
}

func restartedStores() []broken {
	return []broken{
		{"loses its data and claims to keep it", []string{"C1", "C2", "C4", "C5"}, hooks{restart: loses, release: slowly, caps: durable}},
		{"loses its counter", []string{"C2"}, hooks{restart: loses, release: slowly}},
		{"reports what a crash undoes", []string{"C2/killed-under-load"}, undone()},
	}
}

// undone is a store whose last hand-over happens once more after a restart.
func undone() hooks {
	var mu sync.Mutex
	told, again := make(map[string]fence.Token), make(map[string]fence.Token)
	return hooks{caps: durable, release: slowly, restart: func(s *memlock.Store) *memlock.Store {
		mu.Lock()
		defer mu.Unlock()
		again = maps.Clone(told)
		return s
	}, acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
		g, err := b.Acquire(ctx, r)
		if err != nil || !g.Waited {
			return g, err
		}
		mu.Lock()
		defer mu.Unlock()
		if token, ok := again[r.Name]; ok {
			delete(again, r.Name)
			g.Token = token
		}
		told[r.Name] = g.Token
		return g, nil
	}}
}

// every returns a function that returns true every nth time.
func every(n int64) func() bool {
	var calls atomic.Int64
	return func() bool { return calls.Add(1)%n == 0 }
}

// forges grants a lock that is held to a request that matches a holder.
func forges(match func(backend.AcquireRequest, backend.Holder) bool) hooks {
	return hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
		g, err := b.Acquire(ctx, r)
		if held, ok := errors.AsType[*backend.HeldError](err); ok {
			for _, h := range held.Holders {
				if match(r, h) {
					return backend.Grant{Token: h.Token + 1, Asked: time.Now(), Left: r.TTL}, nil
				}
			}
		}
		return g, err
	}}
}

// asksForPermits reports whether the request asks for permits, and is one that a store accepts.
func asksForPermits(b backend.Backend, r backend.AcquireRequest) bool {
	return r.Limit > 0 && r.Validate(b.Capabilities()) == nil
}

func excluding() []broken {
	fifth := every(5)
	fold := func(s string) string {
		i := strings.LastIndexByte(s, '/') // the cases' own random part stays
		return s[:i+1] + strings.ToLower(s[i+1:])
	}
	return []broken{
		{"grants twice: every fifth refusal is a grant", []string{"C1"}, forges(func(backend.AcquireRequest, backend.Holder) bool { return fifth() })},
		{
			"takes a session for the owner: what one goroutine holds the other has too",
			[]string{"C1/one-session-excludes-itself"},
			forges(func(r backend.AcquireRequest, h backend.Holder) bool {
				return r.Session != "" && r.Session == h.Session
			}),
		},
		{
			"lets the owner of a lease in again",
			[]string{"C1/owners-permit-nothing"},
			forges(func(r backend.AcquireRequest, h backend.Holder) bool { return r.Owner != "" && r.Owner == h.Owner }),
		},
		{"looks first and takes then", []string{"C1/one-of-many-wins"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			info, _ := b.Inspect(ctx, r.Name)
			time.Sleep(100 * time.Microsecond) // to the store
			g, err := b.Acquire(ctx, r)
			if len(info.Holders) == 0 && errors.Is(err, backend.ErrHeld) {
				return backend.Grant{Token: info.Token + 1, Asked: time.Now(), Left: r.TTL}, nil
			}
			return g, err
		}}},
		{"asks who holds it when it has refused", []string{"C1/refusals-name-somebody"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			g, err := b.Acquire(ctx, r)
			held, ok := errors.AsType[*backend.HeldError](err)
			if !ok {
				return g, err
			}
			for range 100 { // that is another request, which takes time
				runtime.Gosched()
			}
			info, failed := b.Inspect(ctx, r.Name)
			if failed != nil {
				return g, failed
			}
			held.Holders, held.Ahead = info.Holders, len(info.Waiters)
			return g, err
		}}},
		{"does not enforce the limit", []string{"C1", "C3", "C11"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			if asksForPermits(b, r) {
				r.Limit, r.Permits = 0, 0
			}
			return b.Acquire(ctx, r)
		}}},
		{"gives every permit a weight of one", []string{"C1/permits-up-to-the-limit"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			if asksForPermits(b, r) {
				r.Permits = 1
			}
			return b.Acquire(ctx, r)
		}}},
		{"takes locks by their names in lower case", []string{"C1/names-never-collide"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			r.Name = fold(r.Name)
			return b.Acquire(ctx, r)
		}, release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
			r.Name = fold(r.Name)
			return b.Release(ctx, r)
		}, inspect: func(ctx context.Context, b backend.Backend, name string) (backend.LockInfo, error) {
			info, err := b.Inspect(ctx, fold(name))
			info.Name = name
			return info, err
		}}},
		{"says that it is unavailable when it has granted", []string{"C1/exclusive-excludes"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			g, err := b.Acquire(ctx, r)
			if err == nil {
				err = &backend.UnavailableError{Backend: "memory", Op: "acquire", MayHold: true}
			}
			return g, err
		}}},
	}
}

func counting() []broken {
	var granted sync.Map
	return []broken{
		{"lets the token go back", []string{"C2/tokens-rise-with-every-grant"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			g, err := b.Acquire(ctx, r)
			if g.Token%5 == 0 && g.Token > 5 {
				g.Token -= 2
			}
			return g, err
		}}},
		{"keeps the counter in the lock's record, so that tokens repeat after re-creation", []string{"C2/tokens-rise-after-re-creation"}, hooks{
			acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				info, _ := b.Inspect(ctx, r.Name)
				g, err := b.Acquire(ctx, r)
				if err == nil && len(info.Holders)+len(info.Waiters) == 0 {
					g.Token = 1
				}
				return g, err
			},
		}},
		{"breaks without raising the token", []string{"C2/tokens-rise-after-break", "C10"}, hooks{breaks: func(ctx context.Context, b backend.Backend, r backend.BreakRequest) (backend.BreakResult, error) {
			res, err := b.Break(ctx, r)
			for _, h := range res.Broken {
				res.Token = h.Token
			}
			return res, err
		}}},
		{"gives a second grant for the same lease ID", []string{"C6/acquire-twice-is-one-grant"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			if _, again := granted.Load(r.Lease); again {
				_ = b.Release(ctx, backend.ReleaseRequest{Name: r.Name, Lease: r.Lease})
			}
			g, err := b.Acquire(ctx, r)
			if err == nil {
				granted.Store(r.Lease, true)
			}
			return g, err
		}}},
	}
}

func queueing() []broken {
	fourth := every(4)
	var first sync.Map // the session that asked first for a lease
	return []broken{
		{"loses every fourth wake-up", []string{"C8"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			g, err := b.Acquire(ctx, r)
			if err == nil && g.Waited && fourth() {
				<-ctx.Done()
				return backend.Grant{}, context.Cause(ctx)
			}
			return g, err
		}}},
		{"pushes nothing", []string{"C8/a-hand-over-never-stalls"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			g, err := b.Acquire(ctx, r)
			g.ByTimer = g.Waited
			return g, err
		}}},
		{"lets a reader pass a writer that waits", []string{"C3/reader-does-not-pass-writer"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			info, err := b.Inspect(ctx, r.Name)
			if err == nil && r.Mode == backend.Shared && len(info.Holders) > 0 && info.Holders[0].Mode == backend.Shared && len(info.Waiters) > 0 {
				return backend.Grant{Token: info.Token + 1, Asked: time.Now(), Left: r.TTL}, nil
			}
			return b.Acquire(ctx, r)
		}}},
		{"polls: waiters are in no queue", []string{"C3"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			wait := r.Wait
			r.Wait = false
			for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
				g, err := b.Acquire(ctx, r)
				if !wait || !errors.Is(err, backend.ErrHeld) {
					return g, err
				}
				select {
				case <-time.After(pause):
				case <-ctx.Done():
					return g, context.Cause(ctx)
				}
			}
		}}},
		{"leaves a ghost waiter: abandoning what waits in the queue does nothing", []string{"C7/abandon-what-waits"}, hooks{release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
			info, err := b.Inspect(ctx, r.Name)
			if err == nil && r.Abandon && slices.ContainsFunc(info.Waiters, func(w backend.Waiter) bool { return w.Lease == r.Lease }) {
				return nil
			}
			return b.Release(ctx, r)
		}}},
		{"forgets what was abandoned before it came", []string{"C7/abandon-before-the-acquire"}, hooks{release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
			abandon := r.Abandon
			r.Abandon = false
			if err := b.Release(ctx, r); !abandon || !errors.Is(err, backend.ErrLost) {
				return err
			}
			return nil
		}}},
		{"does not adopt a place in the queue", []string{"C6/a-new-session-adopts-the-place"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			if r.Wait && r.Session != "" && backend.ValidateSessionID(r.Session) == nil {
				s, _ := first.LoadOrStore(r.Lease, r.Session)
				r.Session = s.(backend.SessionID)
			}
			return b.Acquire(ctx, r)
		}}},
		{"takes the cause of a context for the answer to a release", []string{"C12/a-cause-is-no-answer"}, hooks{release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
			if err := context.Cause(ctx); r.Abandon && errors.Is(err, backend.ErrLost) {
				return nil
			}
			return b.Release(ctx, r)
		}}},
		{"takes the cause of a context for the answer to a renewal", []string{"C12/a-cause-is-no-answer"}, hooks{renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
			if err := context.Cause(ctx); errors.Is(err, backend.ErrSessionLost) {
				return backend.RenewResult{SessionLost: true}, nil
			}
			return b.Renew(ctx, r)
		}}},
		{"does not end a wait with its context", []string{"C12"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			return b.Acquire(context.WithoutCancel(ctx), r)
		}}},
	}
}
