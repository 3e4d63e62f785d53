package runner

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// broken is a lock that breaks one promise, for the referee to catch: a green result means
// something only if a red one is possible.
type broken struct {
	name string
	// caught are the checks of the referee, one of which has to find the fault.
	caught []string
	// make breaks a backend: for each rarity grants there is one fault, at the next
	// opportunity. It may have no visible effect: a lease that ends too early may be one that
	// was released before.
	make func(b backend.Backend, rarity int) backend.Backend
}

// clockDivisor is the rarity of the fault of unluckyClock.
const clockDivisor = 211

// brokenLocks has the locks that are broken on purpose.
func brokenLocks() []broken {
	return []broken{
		{"it grants beside a holder", []string{"overlap"}, grantsTwice},
		{"it grants beside a holder when its clock is divisible by 211 µs", []string{"overlap"}, unluckyClock},
		{"it reads that the lock is free, and takes it 2 ms later", []string{"overlap"}, looksFirst},
		{"a lease ends after 60 % of its TTL", []string{"overlap", "model"}, endsEarly},
		{"the renewals of a lease are lost, and reported as done", []string{"overlap", "model"}, losesRenewals},
		{"it reports twice the time that is left", []string{"overlap", "model"}, tellsMore},
		{"a client releases another client's lock", []string{"overlap", "model"}, releasesAny},
		{"a renewal revives what is lost", []string{"model"}, revives},
		{"a reader is let in to a writer", []string{"overlap"}, readersPass},
		{"the limit of a semaphore is not enforced", []string{"overlap"}, noLimit},
		{"a name is taken for one that differs in case", []string{"overlap", "model", "liveness"}, foldsNames},
		{"the token goes back", []string{"tokens"}, tokenBack},
		{"the same token for two grants", []string{"tokens"}, tokenTwice},
		{"a release does nothing", []string{"model", "liveness"}, forgetsRelease},
		{"a wake-up is lost", []string{"liveness"}, losesWakeUp},
		{"a waiter that gave up is granted the lock all the same", []string{"liveness"}, ghostWaiter},
		{"a lease of the dead lives on", []string{"liveness", "rest"}, renewsDead},
	}
}

// dice decides when a backend is faulty: once for each rarity grants, at random.
type dice struct {
	backend.Backend
	rarity int
	due    atomic.Int64
}

func newDice(b backend.Backend, rarity int) *dice { return &dice{Backend: b, rarity: max(1, rarity)} }

// Acquire counts the grants, but for those of the lock that is acquired before the run begins: if that is faulty, there is no
// run.
func (d *dice) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	g, err := d.Backend.Acquire(ctx, r)
	if err == nil && !strings.HasSuffix(r.Name, "/ready") && rand.IntN(d.rarity) == 0 {
		d.due.Add(1)
	}
	return g, err
}

// faulty reports whether a fault is due. The fault then counts as done, unless spared is
// called.
func (d *dice) faulty() bool {
	if d.due.Load() <= 0 {
		return false
	}
	if d.due.Add(-1) < 0 {
		d.due.Add(1)
		return false
	}
	return true
}

// spared restores a fault for which there was no opportunity.
func (d *dice) spared() { d.due.Add(1) }

// marked has the leases whose grant is a faulty one.
type marked struct {
	mu  sync.Mutex
	ids map[backend.LeaseID]bool
}

func (m *marked) add(id backend.LeaseID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ids == nil {
		m.ids = make(map[backend.LeaseID]bool)
	}
	m.ids[id] = true
}

func (m *marked) has(id backend.LeaseID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ids[id]
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

// OpenSession calls the replacement, if there is one.
func (b *twisted) OpenSession(ctx context.Context, r backend.SessionRequest) error {
	if b.open != nil {
		return b.open(ctx, r)
	}
	return b.Backend.OpenSession(ctx, r)
}

// Acquire calls the replacement, if there is one.
func (b *twisted) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	if b.acquire != nil {
		return b.acquire(ctx, r)
	}
	return b.Backend.Acquire(ctx, r)
}

// Renew calls the replacement, if there is one.
func (b *twisted) Renew(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
	if b.renew != nil {
		return b.renew(ctx, r)
	}
	return b.Backend.Renew(ctx, r)
}

// Release calls the replacement, if there is one.
func (b *twisted) Release(ctx context.Context, r backend.ReleaseRequest) error {
	if b.release != nil {
		return b.release(ctx, r)
	}
	return b.Backend.Release(ctx, r)
}

// Close also ends what the replacement started.
func (b *twisted) Close() error {
	if b.shut != nil {
		b.shut()
	}
	return b.Backend.Close()
}

// beside returns a grant that is no lease at all, so that nothing else is broken.
func beside(h backend.Holder, ttl time.Duration) backend.Grant {
	return backend.Grant{Token: h.Token + 1, Asked: time.Now(), Left: ttl}
}

// grantBeside grants a lock that is held by a wanted holder. It reports false when there is
// none.
func grantBeside(ctx context.Context, b backend.Backend, r backend.AcquireRequest, wanted func(backend.Holder) bool) (backend.Grant, bool) {
	info, err := b.Inspect(ctx, r.Name)
	if err != nil || len(info.Holders) == 0 || !wanted(info.Holders[0]) {
		return backend.Grant{}, false
	}
	return beside(info.Holders[0], r.TTL), true
}

// grants returns a backend that grants some requests beside some holders when a fault is due.
func grants(b backend.Backend, rarity int, some func(backend.AcquireRequest) bool, wanted func(backend.Holder) bool) backend.Backend {
	d := newDice(b, rarity)
	return &twisted{Backend: d, acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
		if some(r) && d.faulty() {
			if g, ok := grantBeside(ctx, b, r, wanted); ok {
				return g, nil
			}
			d.spared()
		}
		return d.Acquire(ctx, r)
	}}
}

func anybody(backend.Holder) bool { return true }

func exclusive(r backend.AcquireRequest) bool { return r.Mode == backend.Exclusive }

func grantsTwice(b backend.Backend, rarity int) backend.Backend {
	return grants(b, rarity, exclusive, anybody)
}

func unluckyClock(b backend.Backend, _ int) backend.Backend {
	return &twisted{Backend: b, acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
		if exclusive(r) && time.Now().UnixMicro()%clockDivisor == 0 {
			if g, ok := grantBeside(ctx, b, r, anybody); ok {
				return g, nil
			}
		}
		return b.Acquire(ctx, r)
	}}
}

func readersPass(b backend.Backend, rarity int) backend.Backend {
	return grants(b, rarity, func(r backend.AcquireRequest) bool { return r.Mode == backend.Shared && r.Limit == 0 },
		func(h backend.Holder) bool { return h.Mode == backend.Exclusive })
}

// noLimit grants requests that would be refused only because of the limit.
func noLimit(b backend.Backend, rarity int) backend.Backend {
	d := newDice(b, rarity)
	return &twisted{Backend: d, acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
		if r.Limit == 0 || !d.faulty() {
			return d.Acquire(ctx, r)
		}
		try := r
		try.Wait = false
		g, err := b.Acquire(ctx, try)
		held, ok := errors.AsType[*backend.HeldError](err)
		switch {
		case ok && len(held.Holders) > 0 && held.Holders[0].Mode == backend.Shared:
			return beside(held.Holders[0], r.TTL), nil
		case ok:
			d.spared()
			return d.Acquire(ctx, r)
		}
		d.spared()
		return g, err
	}}
}

// looksFirst is the classic race between a check and a write.
func looksFirst(b backend.Backend, rarity int) backend.Backend {
	d := newDice(b, rarity)
	return &twisted{Backend: d, acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
		if !exclusive(r) || !d.faulty() {
			return d.Acquire(ctx, r)
		}
		info, err := b.Inspect(ctx, r.Name)
		if err != nil || len(info.Holders) > 0 {
			d.spared()
			return d.Acquire(ctx, r)
		}
		retry.Pause(ctx, 2*time.Millisecond)
		if g, ok := grantBeside(ctx, b, r, anybody); ok {
			return g, nil
		}
		return d.Acquire(ctx, r)
	}}
}

// timers end leases without the knowledge of their holders.
type timers struct {
	ctx  context.Context //nolint:containedctx // of the timers, not of a call
	stop context.CancelFunc
	work sync.WaitGroup
}

func newTimers() *timers {
	t := &timers{}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
}

func (t *timers) after(d time.Duration, f func(context.Context)) {
	t.work.Go(func() {
		if retry.Pause(t.ctx, d) {
			f(t.ctx)
		}
	})
}

func (t *timers) shut() { t.stop(); t.work.Wait() }

// sessionTTLs remembers the TTLs of the sessions.
type sessionTTLs struct{ m sync.Map }

func (s *sessionTTLs) of(r backend.AcquireRequest) time.Duration {
	if r.Timed {
		return r.TTL
	}
	ttl, _ := s.m.Load(r.Session)
	d, _ := ttl.(time.Duration)
	return d
}

// ends returns a backend on which a faulty lease ends when a part of its TTL has passed, even
// if it is renewed.
func ends(b backend.Backend, rarity int, part float64, some func(backend.AcquireRequest) bool) backend.Backend {
	d, t, ttls := newDice(b, rarity), newTimers(), &sessionTTLs{}
	return &twisted{
		Backend: d,
		open: func(ctx context.Context, r backend.SessionRequest) error {
			ttls.m.Store(r.ID, r.TTL)
			r.Lost = nil // otherwise the holder would learn of it
			return b.OpenSession(ctx, r)
		},
		acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
			g, err := d.Acquire(ctx, r)
			if err == nil && some(r) && d.faulty() {
				t.after(time.Duration(part*float64(ttls.of(r))), func(ctx context.Context) {
					_ = b.Release(ctx, backend.ReleaseRequest{Name: r.Name, Lease: r.Lease, Session: r.Session})
				})
			}
			return g, err
		},
		shut: t.shut,
	}
}

func endsEarly(b backend.Backend, rarity int) backend.Backend {
	return ends(b, rarity, 0.6, func(backend.AcquireRequest) bool { return true })
}

// losesRenewals harms only a holder that keeps a lock for longer than its TTL.
func losesRenewals(b backend.Backend, rarity int) backend.Backend {
	return ends(b, rarity, 1, func(r backend.AcquireRequest) bool { return !r.Timed })
}

func tellsMore(b backend.Backend, rarity int) backend.Backend {
	d := newDice(b, rarity)
	return &twisted{Backend: d, acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
		g, err := d.Acquire(ctx, r)
		if err == nil && r.Timed && d.faulty() {
			g.Left *= 2
		}
		return g, err
	}}
}

func releasesAny(b backend.Backend, rarity int) backend.Backend {
	d := newDice(b, rarity)
	return &twisted{Backend: d, release: func(ctx context.Context, r backend.ReleaseRequest) error {
		err := b.Release(ctx, r)
		if !errors.Is(err, backend.ErrLost) || !d.faulty() {
			return err
		}
		info, err2 := b.Inspect(ctx, r.Name)
		if err2 != nil || len(info.Holders) == 0 {
			d.spared()
			return err
		}
		h := info.Holders[0]
		return b.Release(ctx, backend.ReleaseRequest{Name: r.Name, Lease: h.Lease, Session: h.Session})
	}}
}

func revives(b backend.Backend, rarity int) backend.Backend {
	d := newDice(b, rarity)
	return &twisted{Backend: d, renew: func(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
		res, err := b.Renew(ctx, r)
		for i := range res.Leases {
			if errors.Is(res.Leases[i].Err, backend.ErrLost) && d.faulty() {
				res.Leases[i] = backend.Renewal{Token: 1, Left: r.Leases[i].TTL}
			}
		}
		return res, err
	}}
}

// foldsNames acquires a lock under another name.
func foldsNames(b backend.Backend, rarity int) backend.Backend {
	d := newDice(b, rarity)
	folded := &marked{}
	name := func(name string, id backend.LeaseID) string {
		if folded.has(id) {
			return strings.ToLower(name)
		}
		return name
	}
	return &twisted{
		Backend: d,
		acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
			if strings.ToLower(r.Name) != r.Name && d.faulty() {
				folded.add(r.Lease)
			}
			r.Name = name(r.Name, r.Lease)
			g, err := d.Acquire(ctx, r)
			if err != nil && folded.has(r.Lease) {
				d.spared() // there was no grant
			}
			return g, err
		},
		renew: func(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
			for i, l := range r.Leases {
				r.Leases[i].Name = name(l.Name, l.Lease)
			}
			return b.Renew(ctx, r)
		},
		release: func(ctx context.Context, r backend.ReleaseRequest) error {
			r.Name = name(r.Name, r.Lease)
			return b.Release(ctx, r)
		},
	}
}

// withTokens returns a backend whose acquires return other tokens. last is the token of the
// previous grant.
func withTokens(b backend.Backend, rarity int, f func(last fence.Token) fence.Token) backend.Backend {
	d := newDice(b, rarity)
	var mu sync.Mutex
	lasts := make(map[string]fence.Token)
	return &twisted{Backend: d, acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
		g, err := d.Acquire(ctx, r)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			last := lasts[r.Name]
			lasts[r.Name] = g.Token
			if last > 1 && d.faulty() {
				g.Token = f(last)
			}
		}
		return g, err
	}}
}

func tokenBack(b backend.Backend, rarity int) backend.Backend {
	return withTokens(b, rarity, func(last fence.Token) fence.Token { return last - 1 })
}

func tokenTwice(b backend.Backend, rarity int) backend.Backend {
	return withTokens(b, rarity, func(last fence.Token) fence.Token { return last })
}

func forgetsRelease(b backend.Backend, rarity int) backend.Backend {
	d := newDice(b, rarity)
	return &twisted{Backend: d, release: func(ctx context.Context, r backend.ReleaseRequest) error {
		if d.faulty() {
			return nil
		}
		return b.Release(ctx, r)
	}}
}

func losesWakeUp(b backend.Backend, rarity int) backend.Backend {
	d := newDice(b, rarity)
	return &twisted{Backend: d, acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
		g, err := d.Acquire(ctx, r)
		if err == nil && g.Waited && d.faulty() {
			<-ctx.Done()
			return backend.Grant{}, context.Cause(ctx)
		}
		return g, err
	}}
}

func ghostWaiter(b backend.Backend, rarity int) backend.Backend {
	d := newDice(b, rarity)
	return &twisted{Backend: d, release: func(ctx context.Context, r backend.ReleaseRequest) error {
		if !r.Abandon || !d.faulty() {
			return b.Release(ctx, r)
		}
		info, err := b.Inspect(ctx, r.Name)
		if err == nil && slices.ContainsFunc(info.Waiters, func(w backend.Waiter) bool { return w.Lease == r.Lease }) {
			return nil
		}
		d.spared()
		return b.Release(ctx, r)
	}}
}
