package play

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// Broken is a lock that breaks one promise, for the referee to catch: a green result means
// something only where a red one can be had.
type Broken struct {
	Name string
	// Caught are the checks of the referee of which one has to see it.
	Caught []string
	Break  func(backend.Backend) backend.Backend
}

// Faults lists the broken locks. Each value of Break is for one run.
func Faults() []Broken {
	return []Broken{
		{"every fifth refusal is a grant", []string{"overlap"}, grantsTwice},
		{"looks whether the lock is free, and takes it then", []string{"overlap"}, looksFirst},
		{"leases end after 60 % of their TTL", []string{"overlap", "model"}, endsEarly},
		{"every other renewal is lost, and told as done", []string{"overlap", "model"}, losesRenewals},
		{"tells twice the time that is left", []string{"overlap", "model"}, tellsMore},
		{"anybody releases anybody's lock", []string{"overlap", "model"}, releasesAny},
		{"a renewal revives what is lost", []string{"model"}, revives},
		{"readers are let in to a writer", []string{"overlap"}, readersPass},
		{"the limit of a semaphore is not enforced", []string{"overlap"}, noLimit},
		{"names that differ in case are one lock", []string{"model", "liveness"}, foldsNames},
		{"the token goes back now and then", []string{"tokens"}, tokenBack},
		{"the same token for two grants", []string{"tokens"}, tokenTwice},
		{"every fifth release does nothing", []string{"liveness"}, forgetsRelease},
		{"every fifth wake-up is lost", []string{"liveness"}, losesWakeUp},
		{"who gave up waiting is granted the lock all the same", []string{"liveness"}, ghostWaiter},
		{"the sessions of the dead live on", []string{"liveness", "rest"}, undead},
	}
}

// twisted is a backend with some of its methods replaced.
type twisted struct {
	backend.Backend
	open    func(context.Context, backend.SessionRequest) error
	acquire func(context.Context, backend.AcquireRequest) (backend.Grant, error)
	renew   func(context.Context, backend.RenewRequest) (backend.RenewResult, error)
	release func(context.Context, backend.ReleaseRequest) error
	shut    func()
}

// OpenSession is the twisted one, if there is one.
func (b *twisted) OpenSession(ctx context.Context, r backend.SessionRequest) error {
	if b.open != nil {
		return b.open(ctx, r)
	}
	return b.Backend.OpenSession(ctx, r)
}

// Acquire is the twisted one, if there is one.
func (b *twisted) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	if b.acquire != nil {
		return b.acquire(ctx, r)
	}
	return b.Backend.Acquire(ctx, r)
}

// Renew is the twisted one, if there is one.
func (b *twisted) Renew(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
	if b.renew != nil {
		return b.renew(ctx, r)
	}
	return b.Backend.Renew(ctx, r)
}

// Release is the twisted one, if there is one.
func (b *twisted) Release(ctx context.Context, r backend.ReleaseRequest) error {
	if b.release != nil {
		return b.release(ctx, r)
	}
	return b.Backend.Release(ctx, r)
}

// Close ends what the twist began, too.
func (b *twisted) Close() error {
	if b.shut != nil {
		b.shut()
	}
	return b.Backend.Close()
}

func grantsTwice(b backend.Backend) backend.Backend {
	var n atomic.Int64
	return &twisted{Backend: b, acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
		g, err := b.Acquire(ctx, r)
		held, ok := errors.AsType[*backend.HeldError](err)
		if ok && len(held.Holders) > 0 && n.Add(1)%5 == 0 {
			return backend.Grant{Token: held.Holders[0].Token + 1, Asked: time.Now(), Left: r.TTL}, nil
		}
		return g, err
	}}
}

// looksFirst is the classic race. What is taken in it is no lease at all, so that nothing
// else is broken than that.
func looksFirst(b backend.Backend) backend.Backend {
	return &twisted{Backend: b, acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
		info, err := b.Inspect(ctx, r.Name)
		free := err == nil && len(info.Holders) == 0
		pause(ctx, 2*time.Millisecond)
		if !free || !r.Wait {
			return b.Acquire(ctx, r)
		}
		r.Wait = false
		g, err := b.Acquire(ctx, r)
		if held, ok := errors.AsType[*backend.HeldError](err); ok && len(held.Holders) > 0 {
			return backend.Grant{Token: held.Holders[0].Token + 1, Asked: time.Now(), Left: r.TTL}, nil
		}
		return g, err
	}}
}

func endsEarly(b backend.Backend) backend.Backend {
	const part = 0.6
	short := func(d time.Duration) time.Duration { return time.Duration(float64(d) * part) }
	long := func(d time.Duration) time.Duration { return time.Duration(float64(d) / part) }
	return &twisted{
		Backend: b,
		open: func(ctx context.Context, r backend.SessionRequest) error {
			r.TTL, r.Lost = short(r.TTL), nil
			return b.OpenSession(ctx, r)
		},
		acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
			r.TTL = short(r.TTL)
			g, err := b.Acquire(ctx, r)
			g.Left = long(g.Left)
			return g, err
		},
	}
}

func tellsMore(b backend.Backend) backend.Backend {
	return &twisted{Backend: b, acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
		g, err := b.Acquire(ctx, r)
		g.Left *= 2
		return g, err
	}}
}

func releasesAny(b backend.Backend) backend.Backend {
	return &twisted{Backend: b, release: func(ctx context.Context, r backend.ReleaseRequest) error {
		err := b.Release(ctx, r)
		if !errors.Is(err, backend.ErrLost) {
			return err
		}
		info, err := b.Inspect(ctx, r.Name)
		if err != nil || len(info.Holders) == 0 {
			return err
		}
		h := info.Holders[0]
		return b.Release(ctx, backend.ReleaseRequest{Name: r.Name, Lease: h.Lease, Session: h.Session})
	}}
}

func revives(b backend.Backend) backend.Backend {
	return &twisted{Backend: b, renew: func(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
		res, err := b.Renew(ctx, r)
		for i := range res.Leases {
			if errors.Is(res.Leases[i].Err, backend.ErrLost) {
				res.Leases[i] = backend.Renewal{Token: 1, Left: r.Leases[i].TTL}
			}
		}
		return res, err
	}}
}

func readersPass(b backend.Backend) backend.Backend {
	return &twisted{Backend: b, acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
		if r.Mode != backend.Shared || r.Limit > 0 {
			return b.Acquire(ctx, r)
		}
		info, err := b.Inspect(ctx, r.Name)
		if err == nil && len(info.Holders) > 0 && info.Holders[0].Mode == backend.Exclusive {
			return backend.Grant{Token: info.Holders[0].Token + 1, Asked: time.Now(), Left: r.TTL}, nil
		}
		return b.Acquire(ctx, r)
	}}
}

func noLimit(b backend.Backend) backend.Backend {
	return &twisted{Backend: b, acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
		r.Limit, r.Permits = 0, 0
		return b.Acquire(ctx, r)
	}}
}

func foldsNames(b backend.Backend) backend.Backend {
	return &twisted{
		Backend: b,
		acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
			r.Name = strings.ToLower(r.Name)
			return b.Acquire(ctx, r)
		},
		renew: func(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
			for i := range r.Leases {
				r.Leases[i].Name = strings.ToLower(r.Leases[i].Name)
			}
			return b.Renew(ctx, r)
		},
		release: func(ctx context.Context, r backend.ReleaseRequest) error {
			r.Name = strings.ToLower(r.Name)
			return b.Release(ctx, r)
		},
	}
}

// withTokens is a backend whose acquires give other tokens.
func withTokens(b backend.Backend, f func(fence.Token) fence.Token) backend.Backend {
	return &twisted{Backend: b, acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
		g, err := b.Acquire(ctx, r)
		if err == nil {
			g.Token = f(g.Token)
		}
		return g, err
	}}
}

func tokenBack(b backend.Backend) backend.Backend {
	return withTokens(b, func(t fence.Token) fence.Token {
		if t%9 == 0 {
			return t - 8
		}
		return t
	})
}

func tokenTwice(b backend.Backend) backend.Backend {
	return withTokens(b, func(t fence.Token) fence.Token { return t/2 + 1 })
}

func forgetsRelease(b backend.Backend) backend.Backend {
	var n atomic.Int64
	return &twisted{Backend: b, release: func(ctx context.Context, r backend.ReleaseRequest) error {
		if n.Add(1)%5 == 0 {
			return nil
		}
		return b.Release(ctx, r)
	}}
}

func losesWakeUp(b backend.Backend) backend.Backend {
	var n atomic.Int64
	return &twisted{Backend: b, acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
		g, err := b.Acquire(ctx, r)
		if err == nil && g.Waited && n.Add(1)%5 == 0 {
			<-ctx.Done()
			return backend.Grant{}, context.Cause(ctx)
		}
		return g, err
	}}
}

// losesRenewals harms only who falls silent right after such a renewal, with a lock in hand.
func losesRenewals(b backend.Backend) backend.Backend {
	var n atomic.Int64
	return &twisted{Backend: b, renew: func(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
		if len(r.Leases) == 0 && n.Add(1)%2 == 0 {
			return backend.RenewResult{}, nil
		}
		return b.Renew(ctx, r)
	}}
}

func ghostWaiter(b backend.Backend) backend.Backend {
	return &twisted{Backend: b, release: func(ctx context.Context, r backend.ReleaseRequest) error {
		info, err := b.Inspect(ctx, r.Name)
		if err == nil && r.Abandon {
			for _, w := range info.Waiters {
				if w.Lease == r.Lease {
					return nil
				}
			}
		}
		return b.Release(ctx, r)
	}}
}

// undead renews every session that was ever opened.
func undead(b backend.Backend) backend.Backend {
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	return &twisted{
		Backend: b,
		open: func(c context.Context, r backend.SessionRequest) error {
			err := b.OpenSession(c, r)
			if err == nil {
				work.Go(func() {
					for pause(ctx, r.TTL/4) {
						if _, err := b.Renew(ctx, backend.RenewRequest{Session: r.ID}); err != nil {
							return
						}
					}
				})
			}
			return err
		},
		shut: func() { stop(); work.Wait() },
	}
}
