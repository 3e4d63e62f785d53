package backendtest_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// longer opens sessions that live longer by a part of their TTL, or shorter.
func longer(part time.Duration) hooks {
	return hooks{open: func(ctx context.Context, b backend.Backend, r backend.SessionRequest) error {
		r.TTL += r.TTL / part
		return b.OpenSession(ctx, r)
	}}
}

// reckons changes the time that is left in the grant of a timed lease.
func reckons(left func(backend.AcquireRequest, time.Duration) time.Duration) hooks {
	return hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
		g, err := b.Acquire(ctx, r)
		if err == nil && r.Timed {
			g.Left = left(r, g.Left)
		}
		return g, err
	}}
}

func expiring() []broken {
	var grants sync.Map
	return []broken{
		{"ends sessions too early", []string{"C4/session-lease-runs-out"}, longer(-20)},
		{"ends sessions too late", []string{"C4/session-lease-runs-out"}, longer(20)},
		{
			"tells more time than is left",
			[]string{"C9/left-is-never-too-much"},
			reckons(func(r backend.AcquireRequest, _ time.Duration) time.Duration { return r.TTL }),
		},
		{
			"tells less time than is left beside others",
			[]string{"C9/left-is-all-there-is"},
			reckons(func(r backend.AcquireRequest, left time.Duration) time.Duration {
				if r.Mode == backend.Shared {
					return min(left, time.Microsecond)
				}
				return left
			}),
		},
		{"counts the TTL of a timed lease from its place in the queue", []string{"C4/timed-lease-counts-from-its-grant"}, hooks{
			acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				from := time.Now()
				g, err := b.Acquire(ctx, r)
				if left := r.TTL - time.Since(from); err == nil && r.Timed && g.Waited && left > 0 && left < r.TTL {
					res, err := b.Renew(ctx, backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: r.Name, Lease: r.Lease, TTL: left}}})
					if err == nil {
						g.Left = res.Leases[0].Left
					}
				}
				return g, err
			},
		}},
		{"returns an expired lease as held", []string{"C14"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			if g, ok := grants.Load(r.Lease); ok && r.Validate(b.Capabilities()) == nil && ctx.Err() == nil {
				return g.(backend.Grant), nil
			}
			g, err := b.Acquire(ctx, r)
			if err == nil {
				grants.Store(r.Lease, g)
			}
			return g, err
		}}},
	}
}

// renews changes each renewal of a timed lease.
func renews(change func(context.Context, backend.Backend, *backend.TimedRenewal)) hooks {
	return hooks{renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
		if r.Validate(b.Capabilities()) == nil {
			r.Leases = slices.Clone(r.Leases)
			for i := range r.Leases {
				change(ctx, b, &r.Leases[i])
			}
		}
		return b.Renew(ctx, r)
	}}
}

func renewing() []broken {
	var granted sync.Map
	forOriginal := renews(func(_ context.Context, _ backend.Backend, l *backend.TimedRenewal) {
		if ttl, ok := granted.Load(l.Lease); ok && l.TTL == 0 {
			l.TTL = ttl.(time.Duration)
		}
	})
	forOriginal.acquire = func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
		granted.Store(r.Lease, r.TTL)
		return b.Acquire(ctx, r)
	}
	return []broken{
		{"never shortens", []string{"C4/renewal-shortens"}, renews(func(ctx context.Context, b backend.Backend, l *backend.TimedRenewal) {
			if info, err := b.Inspect(ctx, l.Name); err == nil && len(info.Holders) == 1 && info.Holders[0].Lease == l.Lease {
				l.TTL = max(l.TTL, info.Holders[0].Left)
			}
		})},
		{
			"renews for a default where there is no TTL",
			[]string{"C4/renewal-keeps-the-ttl"},
			renews(func(_ context.Context, _ backend.Backend, l *backend.TimedRenewal) {
				l.TTL = cmp.Or(l.TTL, time.Second)
			}),
		},
		{"renews for the TTL of the grant where there is no TTL", []string{"C4/renewal-keeps-the-ttl"}, forOriginal},
		{"refuses a call that names a lease twice", []string{"C6/renew-twice-in-one-call"}, hooks{renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
			for i, l := range r.Leases {
				if slices.ContainsFunc(r.Leases[:i], func(x backend.TimedRenewal) bool { return x.Lease == l.Lease }) {
					return backend.RenewResult{}, errAway
				}
			}
			return b.Renew(ctx, r)
		}}},
		{"revives on renew", []string{"C5/renewal-never-revives"}, hooks{renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
			res, err := b.Renew(ctx, r)
			for i, l := range res.Leases {
				again := backend.AcquireRequest{Name: r.Leases[i].Name, Lease: r.Leases[i].Lease, Timed: true, TTL: r.Leases[i].TTL}
				if !errors.Is(l.Err, backend.ErrLost) {
					continue
				}
				if g, err := b.Acquire(ctx, again); err == nil {
					res.Leases[i] = backend.Renewal{Token: g.Token, Left: g.Left}
				}
			}
			return res, err
		}}},
		{"renews a session when nothing else was asked of the value for a moment", []string{"C4/a-holder-lives-under-load"}, renewsLast()},
	}
}

var errAway = &backend.UnavailableError{Backend: "broken", Op: "test", Err: errors.New("connection reset")}

// renewsLast delays the renewal of a session until its backend value has been at rest for a
// moment: behind everything else, however much that is.
func renewsLast() hooks {
	const moment = 150 * time.Millisecond
	var newest sync.Map // when the newest call of a value began
	return hooks{
		acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			newest.Store(b, time.Now())
			return b.Acquire(ctx, r)
		},
		renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
			for at, ok := newest.Load(b); ok && r.Session != "" && time.Since(at.(time.Time)) < moment; at, ok = newest.Load(b) {
				select {
				case <-time.After(moment / 10):
				case <-ctx.Done():
					return backend.RenewResult{}, errAway
				}
			}
			return b.Renew(ctx, r)
		},
	}
}

func ending() []broken {
	var ttls sync.Map
	var mu sync.Mutex
	timed := make(map[backend.SessionID][]backend.ReleaseRequest)
	return []broken{
		{"creates the session again when its TTL differs", []string{"C6/open-with-another-ttl"}, hooks{open: func(ctx context.Context, b backend.Backend, r backend.SessionRequest) error {
			if was, known := ttls.Swap(r.ID, r.TTL); known && was != r.TTL && r.Validate(b.Capabilities()) == nil {
				if err := b.EndSession(ctx, r.ID); err != nil {
					return err
				}
			}
			return b.OpenSession(ctx, r)
		}}},
		{"lets a session revive", []string{"C5/an-expired-session-never-revives", "C5/an-ended-session-never-revives"}, hooks{open: func(ctx context.Context, b backend.Backend, r backend.SessionRequest) error {
			err := b.OpenSession(ctx, r)
			if errors.Is(err, backend.ErrSessionLost) {
				r.ID = backend.NewSessionID()
				return b.OpenSession(ctx, r)
			}
			return err
		}}},
		{"leaves the leases when a session ends", []string{"C8", "C13"}, hooks{end: func(ctx context.Context, b backend.Backend, id backend.SessionID) error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			_, err := b.Renew(ctx, backend.RenewRequest{Session: id}) // does nothing, but knows when it is closed
			return err
		}}},
		{"ends timed leases with the session", []string{"C4/timed-lease-outlives-its-session", "C8"}, hooks{
			acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				if r.Timed {
					mu.Lock()
					timed[r.Session] = append(timed[r.Session], backend.ReleaseRequest{Name: r.Name, Lease: r.Lease})
					mu.Unlock()
				}
				return b.Acquire(ctx, r)
			},
			end: func(ctx context.Context, b backend.Backend, id backend.SessionID) error {
				mu.Lock()
				defer mu.Unlock()
				for _, r := range timed[id] {
					_ = b.Release(ctx, r)
				}
				return b.EndSession(ctx, id)
			},
		}},
		{"stays open", []string{"C13"}, hooks{close: func(backend.Backend) error { return nil }}},
		{"looks at the context before it looks whether it is closed", []string{"C13"}, hooks{inspect: func(ctx context.Context, b backend.Backend, name string) (backend.LockInfo, error) {
			if ctx.Err() != nil {
				return backend.LockInfo{}, context.Cause(ctx)
			}
			return b.Inspect(ctx, name)
		}}},
	}
}

func identifying() []broken {
	return []broken{
		{"releases for a stranger", []string{"C5/strangers-cannot-release", "C6"}, hooks{release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
			err := b.Release(ctx, r)
			if info, failed := b.Inspect(ctx, r.Name); errors.Is(err, backend.ErrLost) && failed == nil && len(info.Holders) > 0 {
				r.Lease = info.Holders[0].Lease
				return b.Release(ctx, r)
			}
			return err
		}}},
		{"compares the first 16 characters of lease IDs", []string{"C5/strangers-cannot-release"}, hooks{release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
			if info, err := b.Inspect(ctx, r.Name); err == nil && r.Validate() == nil {
				for _, h := range info.Holders {
					if h.Lease[:16] == r.Lease[:16] {
						r.Lease = h.Lease
					}
				}
			}
			return b.Release(ctx, r)
		}}},
		{"reports success for a release without a lease", []string{"C5", "C6"}, hooks{release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
			if err := b.Release(ctx, r); !errors.Is(err, backend.ErrLost) {
				return err
			}
			return nil
		}}},
		{"repairs names instead of refusing them", []string{"C11/bad-acquire"}, hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			r.Name = strings.Trim(r.Name, "/\n\t")
			return b.Acquire(ctx, r)
		}}},
		{
			"does what it does not claim",
			[]string{"C11/no-sessions", "C11/no-shared-leases", "C11/no-permits", "C11/no-watch"},
			hooks{caps: func(c *backend.Capabilities) {
				c.Sessions, c.Shared, c.Permits, c.Watch, c.FIFO, c.LossPush = false, false, false, false, false, false
			}},
		},
		{"has timed leases, and does not claim it", []string{"C11/no-timed-leases"}, hooks{caps: func(c *backend.Capabilities) { c.Timed = false }}},
	}
}
