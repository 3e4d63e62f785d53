package backendtest_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func lifeMutants() []mutant {
	return []mutant{
		{"ends sessions too early", []string{"C4"}, func() *hooks {
			return &hooks{open: func(ctx context.Context, b backend.Backend, r backend.SessionRequest) error {
				r.TTL -= r.TTL / 20
				return b.OpenSession(ctx, r)
			}}
		}},
		{"refuses a call that names a lease twice", []string{"C6"}, func() *hooks {
			return &hooks{renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
				seen := make(map[backend.LeaseID]bool)
				for _, l := range r.Leases {
					if seen[l.Lease] {
						return backend.RenewResult{}, &backend.UnavailableError{Backend: "mutant", Op: "renew", Err: errors.New("duplicate key")}
					}
					seen[l.Lease] = true
				}
				return b.Renew(ctx, r)
			}}
		}},
		{"creates the session again when its TTL differs", []string{"C6"}, func() *hooks {
			var ttls sync.Map
			return &hooks{open: func(ctx context.Context, b backend.Backend, r backend.SessionRequest) error {
				if was, known := ttls.Swap(r.ID, r.TTL); known && was != r.TTL && r.Validate(b.Capabilities()) == nil {
					if err := b.EndSession(ctx, r.ID); err != nil {
						return err
					}
				}
				return b.OpenSession(ctx, r)
			}}
		}},
		{"ends sessions too late", []string{"C4"}, func() *hooks {
			return &hooks{open: func(ctx context.Context, b backend.Backend, r backend.SessionRequest) error {
				r.TTL += r.TTL / 20
				return b.OpenSession(ctx, r)
			}}
		}},
		{"counts the TTL of a timed lease from its place in the queue", []string{"C4"}, func() *hooks {
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				from := time.Now()
				g, err := b.Acquire(ctx, r)
				if left := r.TTL - time.Since(from); err == nil && r.Timed && g.Waited && left > 0 && left < r.TTL {
					res, err := b.Renew(ctx, backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: r.Name, Lease: r.Lease, TTL: left}}})
					if err == nil {
						g.Left = res.Leases[0].Left
					}
				}
				return g, err
			}}
		}},
		{"tells more time than is left", []string{"C9"}, func() *hooks {
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				g, err := b.Acquire(ctx, r)
				if err == nil && r.Timed {
					g.Left = r.TTL
				}
				return g, err
			}}
		}},
		{"tells less time than is left beside others", []string{"C9"}, func() *hooks {
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				g, err := b.Acquire(ctx, r)
				if err == nil && r.Timed && r.Mode == backend.Shared {
					g.Left = min(g.Left, time.Microsecond)
				}
				return g, err
			}}
		}},
		{"returns an expired lease as held", []string{"C14"}, func() *hooks {
			var grants sync.Map
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				if r.Validate(b.Capabilities()) == nil && ctx.Err() == nil {
					if g, ok := grants.Load(r.Lease); ok {
						return g.(backend.Grant), nil
					}
				}
				g, err := b.Acquire(ctx, r)
				if err == nil {
					grants.Store(r.Lease, g)
				}
				return g, err
			}}
		}},
		{"never shortens", []string{"C4"}, func() *hooks {
			return &hooks{renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
				if r.Validate(b.Capabilities()) == nil {
					for i, l := range r.Leases {
						info, err := b.Inspect(ctx, l.Name)
						if err == nil && len(info.Holders) == 1 && info.Holders[0].Lease == l.Lease {
							r.Leases[i].TTL = max(l.TTL, info.Holders[0].Left)
						}
					}
				}
				return b.Renew(ctx, r)
			}}
		}},
		{"renews for a default where there is no TTL", []string{"C4"}, func() *hooks {
			return &hooks{renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
				r.Leases = slices.Clone(r.Leases)
				for i := range r.Leases {
					r.Leases[i].TTL = cmp.Or(r.Leases[i].TTL, time.Second)
				}
				return b.Renew(ctx, r)
			}}
		}},
		{"renews for the TTL of the grant where there is no TTL", []string{"C4"}, func() *hooks {
			var granted sync.Map
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				granted.Store(r.Lease, r.TTL)
				return b.Acquire(ctx, r)
			}, renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
				r.Leases = slices.Clone(r.Leases)
				for i, l := range r.Leases {
					if ttl, ok := granted.Load(l.Lease); ok && l.TTL == 0 {
						r.Leases[i].TTL = ttl.(time.Duration)
					}
				}
				return b.Renew(ctx, r)
			}}
		}},
		{"revives on renew", []string{"C5"}, func() *hooks {
			return &hooks{renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
				res, err := b.Renew(ctx, r)
				for i, l := range res.Leases {
					if !errors.Is(l.Err, backend.ErrLost) {
						continue
					}
					again := backend.AcquireRequest{Name: r.Leases[i].Name, Lease: r.Leases[i].Lease, Timed: true, TTL: r.Leases[i].TTL}
					if g, err := b.Acquire(ctx, again); err == nil {
						res.Leases[i] = backend.Renewal{Token: g.Token, Left: g.Left}
					}
				}
				return res, err
			}}
		}},
		{"lets a session revive", []string{"C5"}, sessionRevives},
		{"leaves the leases when a session ends", []string{"C8", "C13"}, func() *hooks {
			return &hooks{end: func(ctx context.Context, b backend.Backend, id backend.SessionID) error {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				_, err := b.Renew(ctx, backend.RenewRequest{Session: id}) // does nothing, but knows when it is closed
				return err
			}}
		}},
		{"ends timed leases with the session", []string{"C4", "C8"}, func() *hooks {
			var mu sync.Mutex
			timed := make(map[backend.SessionID][]backend.ReleaseRequest)
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				if r.Timed {
					mu.Lock()
					timed[r.Session] = append(timed[r.Session], backend.ReleaseRequest{Name: r.Name, Lease: r.Lease})
					mu.Unlock()
				}
				return b.Acquire(ctx, r)
			}, end: func(ctx context.Context, b backend.Backend, id backend.SessionID) error {
				mu.Lock()
				defer mu.Unlock()
				for _, r := range timed[id] {
					_ = b.Release(ctx, r)
				}
				return b.EndSession(ctx, id)
			}}
		}},
		{"renews a session when nothing else was asked of the value for a moment", []string{"C4"}, renewsLast},
		{"stays open", []string{"C13"}, func() *hooks {
			return &hooks{close: func(backend.Backend) error { return nil }}
		}},
		{"looks at the context before it looks whether it is closed", []string{"C13"}, func() *hooks {
			return &hooks{inspect: func(ctx context.Context, b backend.Backend, name string) (backend.LockInfo, error) {
				if ctx.Err() != nil {
					return backend.LockInfo{}, context.Cause(ctx)
				}
				return b.Inspect(ctx, name)
			}}
		}},
	}
}

// renewsLast delays the renewal of a session until its backend value has been at rest for a
// moment: behind everything else, however much that is.
func renewsLast() *hooks {
	const moment = 150 * time.Millisecond
	var newest sync.Map // when the newest call of a value began
	return &hooks{
		acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			newest.Store(b, time.Now())
			return b.Acquire(ctx, r)
		},
		release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
			newest.Store(b, time.Now())
			return b.Release(ctx, r)
		},
		renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
			if r.Session == "" || r.Validate(b.Capabilities()) != nil {
				return b.Renew(ctx, r)
			}
			for at, ok := newest.Load(b); ok && time.Since(at.(time.Time)) < moment; at, ok = newest.Load(b) {
				select {
				case <-time.After(moment / 10):
				case <-ctx.Done():
					return backend.RenewResult{}, &backend.UnavailableError{Backend: "mutant", Op: "renew", Err: context.Cause(ctx)}
				}
			}
			return b.Renew(ctx, r)
		},
	}
}

// sessionRevives opens another session in place of one that has ended.
func sessionRevives() *hooks {
	var now sync.Map // the ID that an ID stands for
	id := func(s backend.SessionID) backend.SessionID {
		if to, ok := now.Load(s); ok {
			return to.(backend.SessionID)
		}
		return s
	}
	return &hooks{
		open: func(ctx context.Context, b backend.Backend, r backend.SessionRequest) error {
			was := r.ID
			r.ID = id(was)
			err := b.OpenSession(ctx, r)
			if !errors.Is(err, backend.ErrSessionLost) {
				return err
			}
			r.ID = backend.NewSessionID()
			now.Store(was, r.ID)
			return b.OpenSession(ctx, r)
		},
		end: func(ctx context.Context, b backend.Backend, s backend.SessionID) error {
			return b.EndSession(ctx, id(s))
		},
		acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			r.Session = id(r.Session)
			return b.Acquire(ctx, r)
		},
		renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
			r.Session = id(r.Session)
			return b.Renew(ctx, r)
		},
	}
}

func identityMutants() []mutant {
	return []mutant{
		{"releases for a stranger", []string{"C5", "C6"}, func() *hooks {
			return &hooks{release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
				err := b.Release(ctx, r)
				if info, failed := b.Inspect(ctx, r.Name); errors.Is(err, backend.ErrLost) && failed == nil && len(info.Holders) > 0 {
					r.Lease = info.Holders[0].Lease
					return b.Release(ctx, r)
				}
				return err
			}}
		}},
		{"compares the first 16 characters of lease IDs", []string{"C5"}, func() *hooks {
			return &hooks{release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
				if info, err := b.Inspect(ctx, r.Name); err == nil && r.Validate() == nil {
					for _, h := range info.Holders {
						if h.Lease[:16] == r.Lease[:16] {
							r.Lease = h.Lease
						}
					}
				}
				return b.Release(ctx, r)
			}}
		}},
		{"reports success for a release without a lease", []string{"C5", "C6"}, func() *hooks {
			return &hooks{release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
				if err := b.Release(ctx, r); !errors.Is(err, backend.ErrLost) {
					return err
				}
				return nil
			}}
		}},
		{"repairs names instead of refusing them", []string{"C11"}, func() *hooks {
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				r.Name = strings.Trim(r.Name, "/\n\t")
				return b.Acquire(ctx, r)
			}}
		}},
		{"lets the owner of a lease in again", []string{"C1"}, func() *hooks {
			return rejoins(func(r backend.AcquireRequest, h backend.Holder) bool { return r.Owner != "" && r.Owner == h.Owner })
		}},
	}
}

// partOfMany is more than any other case breaks at a time.
const partOfMany = 24

// breakOfMany calls then after a break of more than partOfMany.
func breakOfMany(then func(context.Context, backend.Backend, backend.BreakRequest, backend.BreakResult) (backend.BreakResult, error)) *hooks {
	return &hooks{breaks: func(ctx context.Context, b backend.Backend, r backend.BreakRequest) (backend.BreakResult, error) {
		res, err := b.Break(ctx, r)
		if err != nil || len(res.Broken) <= partOfMany {
			return res, err
		}
		return then(ctx, b, r, res)
	}}
}

func toldMutants() []mutant {
	return []mutant{
		{"breaks without telling by push", []string{"C10"}, func() *hooks {
			return &hooks{open: func(ctx context.Context, b backend.Backend, r backend.SessionRequest) error {
				r.Lost = nil
				return b.OpenSession(ctx, r)
			}}
		}},
		{"breaks all though one lease was named", []string{"C10"}, func() *hooks {
			return &hooks{breaks: func(ctx context.Context, b backend.Backend, r backend.BreakRequest) (backend.BreakResult, error) {
				r.Lease = ""
				return b.Break(ctx, r)
			}}
		}},
		{"breaks without telling by renewal", []string{"C10"}, func() *hooks {
			return &hooks{renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
				res, err := b.Renew(ctx, r)
				res.Lost = nil
				return res, err
			}}
		}},
		{"reports the loss of a lease only once, though it grants it again", []string{"C10"}, func() *hooks {
			var told sync.Map
			return &hooks{renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
				res, err := b.Renew(ctx, r)
				res.Lost = slices.DeleteFunc(res.Lost, func(x backend.Loss) bool {
					_, again := told.LoadOrStore(x.Lease, true)
					return again
				})
				return res, err
			}}
		}},
		{"breaks many in parts, and takes the lock from those whom the first part let in", []string{"C10"}, func() *hooks {
			return breakOfMany(func(ctx context.Context, b backend.Backend, r backend.BreakRequest, res backend.BreakResult) (backend.BreakResult, error) {
				_, err := b.Break(ctx, r)
				return res, err
			})
		}},
		{"names only the last part of many that it broke", []string{"C10"}, func() *hooks {
			return breakOfMany(func(_ context.Context, _ backend.Backend, _ backend.BreakRequest, res backend.BreakResult) (backend.BreakResult, error) {
				res.Broken = res.Broken[partOfMany:]
				return res, nil
			})
		}},
		{"names one of many twice", []string{"C10"}, func() *hooks {
			return breakOfMany(func(_ context.Context, _ backend.Backend, _ backend.BreakRequest, res backend.BreakResult) (backend.BreakResult, error) {
				res.Broken = append(res.Broken, res.Broken[0])
				return res, nil
			})
		}},
		{"fails after a part of many, and says that nothing was done", []string{"C10"}, func() *hooks {
			return breakOfMany(func(context.Context, backend.Backend, backend.BreakRequest, backend.BreakResult) (backend.BreakResult, error) {
				return backend.BreakResult{}, &backend.UnavailableError{Backend: "mutant", Op: "break", Err: errors.New("connection reset")}
			})
		}},
		{"looks who has the lock before it draws the token of a break", []string{"C10"}, func() *hooks {
			return &hooks{breaks: func(ctx context.Context, b backend.Backend, r backend.BreakRequest) (backend.BreakResult, error) {
				if before, err := b.Inspect(ctx, r.Name); err != nil || len(before.Holders) > 0 {
					return b.Break(ctx, r)
				}
				time.Sleep(time.Millisecond)
				if now, err := b.Inspect(ctx, r.Name); err == nil && len(now.Holders) > 0 {
					return backend.BreakResult{Token: now.Token + 1}, nil
				}
				return b.Break(ctx, r)
			}}
		}},
		{"does not tell that a session is lost", []string{"C5", "C10"}, func() *hooks {
			return &hooks{renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
				res, err := b.Renew(ctx, r)
				res.SessionLost = false
				return res, err
			}}
		}},
		{"loses every seventh event", []string{"C10"}, func() *hooks {
			var n atomic.Int64
			return &hooks{watch: func(ctx context.Context, b backend.Backend, r backend.WatchRequest, deliver func(backend.Event)) error {
				return b.Watch(ctx, r, func(e backend.Event) {
					if n.Add(1)%7 != 0 {
						deliver(e)
					}
				})
			}}
		}},
	}
}
