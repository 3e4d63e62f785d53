package backendtest_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// hooks break a backend. A hook that is nil leaves its method as it is. One value of
// hooks is shared by all backend values on one store.
type hooks struct {
	open    func(context.Context, backend.Backend, backend.SessionRequest) error
	end     func(context.Context, backend.Backend, backend.SessionID) error
	acquire func(context.Context, backend.Backend, backend.AcquireRequest) (backend.Grant, error)
	renew   func(context.Context, backend.Backend, backend.RenewRequest) (backend.RenewResult, error)
	release func(context.Context, backend.Backend, backend.ReleaseRequest) error
	inspect func(context.Context, backend.Backend, string) (backend.LockInfo, error)
	breaks  func(context.Context, backend.Backend, backend.BreakRequest) (backend.BreakResult, error)
	watch   func(context.Context, backend.Backend, backend.WatchRequest, func(backend.Event)) error
	close   func(backend.Backend) error
}

// mutated is a backend with hooks.
type mutated struct {
	backend.Backend
	h *hooks
}

func (m mutated) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	if m.h.open != nil {
		return m.h.open(ctx, m.Backend, req)
	}
	return m.Backend.OpenSession(ctx, req)
}

func (m mutated) EndSession(ctx context.Context, id backend.SessionID) error {
	if m.h.end != nil {
		return m.h.end(ctx, m.Backend, id)
	}
	return m.Backend.EndSession(ctx, id)
}

func (m mutated) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	if m.h.acquire != nil {
		return m.h.acquire(ctx, m.Backend, req)
	}
	return m.Backend.Acquire(ctx, req)
}

func (m mutated) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	if m.h.renew != nil {
		return m.h.renew(ctx, m.Backend, req)
	}
	return m.Backend.Renew(ctx, req)
}

func (m mutated) Release(ctx context.Context, req backend.ReleaseRequest) error {
	if m.h.release != nil {
		return m.h.release(ctx, m.Backend, req)
	}
	return m.Backend.Release(ctx, req)
}

func (m mutated) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	if m.h.inspect != nil {
		return m.h.inspect(ctx, m.Backend, name)
	}
	return m.Backend.Inspect(ctx, name)
}

func (m mutated) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	if m.h.breaks != nil {
		return m.h.breaks(ctx, m.Backend, req)
	}
	return m.Backend.Break(ctx, req)
}

func (m mutated) Watch(ctx context.Context, req backend.WatchRequest, deliver func(backend.Event)) error {
	if m.h.watch != nil {
		return m.h.watch(ctx, m.Backend, req, deliver)
	}
	return m.Backend.Watch(ctx, req, deliver)
}

func (m mutated) Close() error {
	if m.h.close != nil {
		return m.h.close(m.Backend)
	}
	return m.Backend.Close()
}

// mutant is a backend that breaks one rule.
type mutant struct {
	name string
	// caught are IDs, each of which has to have a case that fails.
	caught []string
	hooks  func() *hooks
}

func mutants() []mutant {
	return slices.Concat(exclusionMutants(), tokenMutants(), queueMutants(), lifeMutants(), identityMutants(), toldMutants())
}

func exclusionMutants() []mutant {
	return []mutant{
		{"grants twice: every fifth refusal is a grant", []string{"C1"}, func() *hooks {
			var n atomic.Int64
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				g, err := b.Acquire(ctx, r)
				var held *backend.HeldError
				if errors.As(err, &held) && len(held.Holders) > 0 && n.Add(1)%5 == 0 {
					return backend.Grant{Token: held.Holders[0].Token + 1, Asked: time.Now(), Left: r.TTL}, nil
				}
				return g, err
			}}
		}},
		{"looks first and takes then", []string{"C1"}, looksFirst},
		{"asks who holds it when it has refused", []string{"C1"}, func() *hooks {
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
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
			}}
		}},
		{"does not enforce the limit", []string{"C1", "C3", "C11"}, func() *hooks {
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				if r.Limit > 0 && r.Validate(b.Capabilities()) == nil {
					r.Limit, r.Permits = 0, 0
				}
				return b.Acquire(ctx, r)
			}}
		}},
		{"gives every permit a weight of one", []string{"C1"}, func() *hooks {
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				if r.Limit > 0 && r.Validate(b.Capabilities()) == nil {
					r.Permits = 1
				}
				return b.Acquire(ctx, r)
			}}
		}},
		{"takes locks by their names in lower case", []string{"C1"}, func() *hooks {
			fold := func(s string) string {
				i := strings.LastIndexByte(s, '/') // the cases' own random part stays
				return s[:i+1] + strings.ToLower(s[i+1:])
			}
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				r.Name = fold(r.Name)
				return b.Acquire(ctx, r)
			}, release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
				r.Name = fold(r.Name)
				return b.Release(ctx, r)
			}, inspect: func(ctx context.Context, b backend.Backend, name string) (backend.LockInfo, error) {
				info, err := b.Inspect(ctx, fold(name))
				info.Name = name
				return info, err
			}}
		}},
		{"takes a session for the owner: what one goroutine holds the other has too", []string{"C1"}, func() *hooks {
			return rejoins(func(r backend.AcquireRequest, h backend.Holder) bool {
				return r.Session != "" && r.Session == h.Session
			})
		}},
	}
}

// rejoins grants a lock that is held to a request that is the same client as a holder.
func rejoins(same func(backend.AcquireRequest, backend.Holder) bool) *hooks {
	return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
		g, err := b.Acquire(ctx, r)
		var held *backend.HeldError
		if errors.As(err, &held) && r.Mode == backend.Exclusive {
			for _, h := range held.Holders {
				if same(r, h) {
					return backend.Grant{Token: h.Token, Asked: time.Now(), Since: h.Since, Left: h.Left}, nil
				}
			}
		}
		return g, err
	}}
}

// looksFirst is the classic race: one request reads whether the lock is free, and another takes
// it.
func looksFirst() *hooks {
	var mu sync.Mutex
	var last fence.Token
	held := make(map[string]backend.Holder)
	get := func(name string) (backend.Holder, bool) {
		mu.Lock()
		defer mu.Unlock()
		h, ok := held[name]
		return h, ok
	}
	return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
		if err := r.Validate(b.Capabilities()); err != nil {
			return backend.Grant{}, err
		}
		for way := 100 * time.Microsecond; ctx.Err() == nil; way = min(2*way, time.Second) {
			_, taken := get(r.Name)
			<-time.After(way) // to the store
			if !taken {
				mu.Lock()
				defer mu.Unlock()
				last++
				held[r.Name] = backend.Holder{Lease: r.Lease, Token: last}
				return backend.Grant{Token: last, Asked: time.Now(), Left: r.TTL}, nil
			}
			if !r.Wait {
				return backend.Grant{}, &backend.HeldError{Name: r.Name}
			}
		}
		return backend.Grant{}, context.Cause(ctx)
	}, release: func(_ context.Context, _ backend.Backend, r backend.ReleaseRequest) error {
		mu.Lock()
		defer mu.Unlock()
		if held[r.Name].Lease == r.Lease {
			delete(held, r.Name)
			return nil
		}
		if r.Abandon {
			return nil
		}
		return backend.ErrLost
	}, inspect: func(_ context.Context, _ backend.Backend, name string) (backend.LockInfo, error) {
		info := backend.LockInfo{Name: name}
		if h, ok := get(name); ok {
			info.Holders = append(info.Holders, h)
		}
		return info, nil
	}}
}

// mapTokens changes every token that the backend returns.
func mapTokens(f func(name string, t fence.Token) fence.Token) *hooks {
	return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
		g, err := b.Acquire(ctx, r)
		if err == nil {
			g.Token = f(r.Name, g.Token)
		}
		return g, err
	}, renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
		res, err := b.Renew(ctx, r)
		for i := range res.Leases {
			if res.Leases[i].Err == nil {
				res.Leases[i].Token = f(r.Leases[i].Name, res.Leases[i].Token)
			}
		}
		return res, err
	}, inspect: func(ctx context.Context, b backend.Backend, name string) (backend.LockInfo, error) {
		info, err := b.Inspect(ctx, name)
		for i := range info.Holders {
			info.Holders[i].Token = f(name, info.Holders[i].Token)
		}
		if info.Token > 0 {
			info.Token = f(name, info.Token)
		}
		return info, err
	}, breaks: func(ctx context.Context, b backend.Backend, r backend.BreakRequest) (backend.BreakResult, error) {
		res, err := b.Break(ctx, r)
		for i := range res.Broken {
			res.Broken[i].Token = f(r.Name, res.Broken[i].Token)
		}
		res.Token = f(r.Name, res.Token)
		return res, err
	}, watch: func(ctx context.Context, b backend.Backend, r backend.WatchRequest, deliver func(backend.Event)) error {
		return b.Watch(ctx, r, func(e backend.Event) {
			if e.Token > 0 {
				e.Token = f(e.Name, e.Token)
			}
			deliver(e)
		})
	}}
}

func tokenMutants() []mutant {
	return []mutant{
		{"lets the token go back", []string{"C2"}, func() *hooks {
			return mapTokens(func(_ string, t fence.Token) fence.Token {
				if t%5 == 0 && t > 5 {
					return t - 2
				}
				return t
			})
		}},
		{"keeps the counter in the lock's record, so that tokens repeat after re-creation", []string{"C2"}, func() *hooks {
			var mu sync.Mutex
			base := make(map[string]fence.Token)
			h := mapTokens(func(name string, t fence.Token) fence.Token {
				mu.Lock()
				defer mu.Unlock()
				if _, ok := base[name]; !ok {
					base[name] = t - 1
				}
				return t - base[name]
			})
			forget := func(b backend.Backend) {
				mu.Lock()
				defer mu.Unlock()
				for name := range base {
					if info, err := b.Inspect(context.Background(), name); err == nil && len(info.Holders)+len(info.Waiters) == 0 {
						delete(base, name)
					}
				}
			}
			h.release = func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
				defer forget(b)
				return b.Release(ctx, r)
			}
			h.end = func(ctx context.Context, b backend.Backend, id backend.SessionID) error {
				defer forget(b)
				return b.EndSession(ctx, id)
			}
			return h
		}},
		{"breaks without raising the token", []string{"C2", "C10"}, func() *hooks {
			return &hooks{breaks: func(ctx context.Context, b backend.Backend, r backend.BreakRequest) (backend.BreakResult, error) {
				res, err := b.Break(ctx, r)
				for _, h := range res.Broken {
					res.Token = h.Token
				}
				return res, err
			}}
		}},
		{"gives a second grant for the same lease ID", []string{"C6"}, func() *hooks {
			var granted sync.Map
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				if _, again := granted.Load(r.Lease); again {
					_ = b.Release(ctx, backend.ReleaseRequest{Name: r.Name, Lease: r.Lease})
				}
				g, err := b.Acquire(ctx, r)
				if err == nil {
					granted.Store(r.Lease, true)
				}
				return g, err
			}}
		}},
	}
}

func queueMutants() []mutant {
	return []mutant{
		{"loses every fourth wake-up", []string{"C8"}, func() *hooks {
			var n atomic.Int64
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				g, err := b.Acquire(ctx, r)
				if err == nil && g.Waited && n.Add(1)%4 == 0 {
					<-ctx.Done()
					return backend.Grant{}, context.Cause(ctx)
				}
				return g, err
			}}
		}},
		{"lets a reader pass a writer that waits", []string{"C3"}, readerPasses},
		{"polls: waiters are in no queue", []string{"C3"}, func() *hooks {
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				wait := r.Wait
				r.Wait = false
				for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
					g, err := b.Acquire(ctx, r)
					if !wait || !errors.Is(err, backend.ErrHeld) {
						return g, err
					}
					t := time.NewTimer(pause)
					select {
					case <-t.C:
					case <-ctx.Done():
						t.Stop()
						return g, context.Cause(ctx)
					}
				}
			}}
		}},
		{"leaves a ghost waiter: abandoning what waits in the queue does nothing", []string{"C7"}, func() *hooks {
			return &hooks{release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
				info, err := b.Inspect(ctx, r.Name)
				waits := err == nil && slices.ContainsFunc(info.Waiters, func(w backend.Waiter) bool { return w.Lease == r.Lease })
				if waits && r.Abandon {
					return nil
				}
				return b.Release(ctx, r)
			}}
		}},
		{"forgets what was abandoned before it came", []string{"C7"}, func() *hooks {
			return &hooks{release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
				if !r.Abandon {
					return b.Release(ctx, r)
				}
				r.Abandon = false
				if err := b.Release(ctx, r); !errors.Is(err, backend.ErrLost) {
					return err
				}
				return nil
			}}
		}},
		{"does not adopt a place in the queue", []string{"C6"}, func() *hooks {
			var first sync.Map
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				if r.Wait && r.Session != "" && backend.ValidateSessionID(r.Session) == nil {
					s, _ := first.LoadOrStore(r.Lease, r.Session)
					r.Session = s.(backend.SessionID)
				}
				return b.Acquire(ctx, r)
			}}
		}},
		{"takes the cause of a context for the answer to a release", []string{"C12"}, func() *hooks {
			return &hooks{release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
				if err := context.Cause(ctx); r.Abandon && errors.Is(err, backend.ErrLost) {
					return nil
				}
				return b.Release(ctx, r)
			}}
		}},
		{"takes the cause of a context for the answer to a renewal", []string{"C12"}, func() *hooks {
			return &hooks{renew: func(ctx context.Context, b backend.Backend, r backend.RenewRequest) (backend.RenewResult, error) {
				if err := context.Cause(ctx); errors.Is(err, backend.ErrSessionLost) {
					return backend.RenewResult{SessionLost: true}, nil
				}
				return b.Renew(ctx, r)
			}}
		}},
		{"does not end a wait with its context", []string{"C12"}, func() *hooks {
			return &hooks{acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				return b.Acquire(context.WithoutCancel(ctx), r)
			}}
		}},
	}
}

// readerPasses grants a reader that would have to wait behind a writer, while other readers
// hold the lock, on a lock of its own.
func readerPasses() *hooks {
	const shadow = "shadow/"
	var passed sync.Map // of the leases that are on the other lock
	where := func(name string, id backend.LeaseID) string {
		if _, ok := passed.Load(id); ok {
			return shadow + name
		}
		return name
	}
	return &hooks{
		acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
			info, err := b.Inspect(ctx, r.Name)
			readers := err == nil && len(info.Holders) > 0 && info.Holders[0].Mode == backend.Shared
			if r.Mode == backend.Shared && r.Limit == 0 && readers && len(info.Waiters) > 0 {
				passed.Store(r.Lease, true)
			}
			r.Name = where(r.Name, r.Lease)
			return b.Acquire(ctx, r)
		},
		release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
			r.Name = where(r.Name, r.Lease)
			return b.Release(ctx, r)
		},
		inspect: func(ctx context.Context, b backend.Backend, name string) (backend.LockInfo, error) {
			info, err := b.Inspect(ctx, name)
			if err != nil {
				return info, err
			}
			more, err := b.Inspect(ctx, shadow+name)
			info.Holders = append(info.Holders, more.Holders...)
			return info, err
		},
	}
}
