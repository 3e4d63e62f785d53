package seqlock_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/seqlock"
	"github.com/holdfast-io/holdfast/internal/sessions"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/simulate"
)

// The engine on keys in memory, in virtual time: the suite, and the simulation with a network between the engine and
// its keys that loses and delays.

// value is a backend on keys. It implements seqlock.Store.
type value struct {
	*seqlock.Engine[*member, *item, struct{}]

	way *way
}

func (value) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Name: "keys", Sessions: true, Bound: true, Shared: true, Permits: true, FIFO: true, Push: true, LossPush: true, Durable: true,
		TokenKind: "revision", MinTTL: time.Second, MaxTTL: time.Hour, ExpiryLag: time.Minute,
	}
}

func (v value) Close() error {
	v.Sessions.Close()
	return nil
}

// on returns a value on the keys. Faults come from rand; nil: there are none.
func on(k *keys, faults *rand.Rand) value {
	w := &way{keys: k, net: simulate.NewNetwork(faults)}
	v := value{way: w}
	var engine *seqlock.Engine[*member, *item, struct{}]
	engine = seqlock.NewEngine(sessions.Config[*member]{
		Caps: v.Capabilities(),
		New: func(s *sessions.Session) *member {
			return &member{Session: s, way: w, leases: seqlock.NewLeases[struct{}](s, nil), base: engine.Base()}
		},
		Fail: fail,
	}, ofKeys{w})
	v.Engine = engine
	return v
}

func fail(ctx context.Context, op string, err error, changes bool) error {
	switch {
	case errors.Is(err, errGone):
		return backend.ErrSessionLost
	case notDone(err), mayBeDone(err):
		mayHold := changes && mayBeDone(err)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return &backend.UnavailableError{Backend: "keys", Op: op, MayHold: mayHold, Err: err}
	}
	return err
}

// storeTTL is how many TTLs a session lives in the store: longer than here.
const storeTTL = 2

// notDone reports whether the request was not executed, mayBeDone whether that is not known.
func notDone(err error) bool {
	return errors.Is(err, simulate.ErrUnsent) || errors.Is(err, simulate.ErrRefused)
}

func mayBeDone(err error) bool {
	return errors.Is(err, simulate.ErrCut) || errors.Is(err, simulate.ErrEnds)
}

// member is a session.
type member struct {
	*sessions.Session

	way    *way
	leases *seqlock.Leases[struct{}]
	inbox  seqlock.Inbox
	owner  *owner
	base   context.Context //nolint:containedctx // it ends with the value
}

func (p *member) Leases() *seqlock.Leases[struct{}] { return p.leases }

func (p *member) Open(ctx context.Context) error {
	o, err := ask(ctx, p.way, func() *owner { return p.way.open(storeTTL * p.TTL) })
	if err != nil {
		return err
	}
	p.owner = o
	return p.Extend()
}

func (p *member) Run() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.hear()
	}()
	p.Keep(nil)
	<-done
}

// hear reports the losses that notices tell of.
func (p *member) hear() {
	for p.Life.Err() == nil {
		notices, told, lives := p.way.notices(p.owner)
		if !lives {
			p.Expire(backend.CauseGone)
			return
		}
		if err := p.take(p.Life, notices); err != nil {
			simulate.Sleep(p.Life, time.Second)
			continue
		}
		select {
		case <-told:
		case <-p.Life.Done():
		}
	}
}

func (p *member) take(ctx context.Context, notices []seqlock.Notice) error {
	for _, n := range notices {
		p.leases.Report(backend.Loss{Lease: n.Lease, Cause: backend.CauseBroken, Reason: n.Reason}, func(*seqlock.Lease[struct{}]) {})
	}
	return p.inbox.Read(notices, func() error {
		gone, err := ask(ctx, p.way, func() []seqlock.Key { return p.way.missing(p.owner, p.leases.Held()) })
		for _, k := range gone {
			if p.leases.EntryOf(k) != "" {
				p.leases.Report(backend.Loss{Lease: k.ID, Cause: backend.CauseGone}, func(*seqlock.Lease[struct{}]) {})
			}
		}
		return err
	})
}

func (p *member) Renew(ctx context.Context) error {
	lives, err := ask(ctx, p.way, func() bool { return p.way.renew(p.owner, storeTTL*p.TTL) })
	switch {
	case err != nil:
		return err
	case !lives:
		p.Expire(backend.CauseGone)
		return backend.ErrSessionLost
	}
	return p.Extend()
}

func (p *member) End(ctx context.Context) error {
	if p.owner == nil {
		return nil
	}
	_, err := ask(ctx, p.way, func() bool { p.way.end(p.owner); return true })
	return err
}

func (p *member) Bury() bool {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := p.End(ctx)
		cancel()
		if err == nil || p.Expired() {
			return true
		}
		if !simulate.Sleep(p.base, time.Second) {
			return false
		}
	}
}

// ofKeys implements seqlock.Store.
type ofKeys struct{ *way }

// place is an acquire in progress. It implements seqlock.Place.
type place struct {
	*way

	member *member
	lease  *seqlock.Lease[struct{}]
	req    *backend.AcquireRequest
	token  fence.Token
	waits  bool
}

func (st ofKeys) Acquire(ctx context.Context, p *member, l *seqlock.Lease[struct{}], req *backend.AcquireRequest) (backend.Grant, error) {
	a := &place{way: st.way, member: p, lease: l, req: req}
	fresh := true
	if !req.Wait {
		q, err := a.Read(ctx)
		if err != nil {
			return backend.Grant{}, err
		}
		if fresh = q.Find(req.Lease) < 0; fresh {
			if err := seqlock.CheckRoom(ctx, a, req, q); err != nil {
				return backend.Grant{}, err
			}
		}
	}
	q, err := a.enter(ctx)
	if err == nil {
		err = seqlock.Stand(ctx, a, req, q, fresh)
	}
	return backend.Grant{Token: a.token, Since: time.Now(), Waited: a.waits}, err
}

type joined struct {
	q   queue
	err error
}

// enter makes the item, until it is certain that there is one.
func (a *place) enter(ctx context.Context) (queue, error) {
	e := item{Key: a.lease.Key, claim: a.req.Claim(), owner: a.member.owner, about: backend.Holder{
		Session: a.req.Session, Owner: a.req.Owner, Note: a.req.Note, Since: time.Now(),
	}}
	if a.lease.IsGone() {
		return queue{}, backend.ErrLost
	}
	answer, err := ask(ctx, a.way, func() joined { q, err := a.join(e); return joined{q, err} })
	leases := a.member.leases
	leases.Lock()
	switch {
	case err == nil && answer.err == nil:
		a.lease.Entry, a.lease.Unsure = string(e.ID), false
	case mayBeDone(err):
		a.lease.Unsure = true
	}
	leases.Unlock()
	if a.lease.IsGone() { // its release may not have seen the item
		_, _ = a.bury(a.member.Life, a.lease.Key)
		return queue{}, backend.ErrLost
	}
	if err == nil {
		err = answer.err
	}
	return answer.q, err
}

func (a *place) Read(ctx context.Context) (queue, error) {
	return ask(ctx, a.way, func() queue { q, _ := a.read(a.req.Name); return q })
}

func (a *place) Check(_ context.Context, q queue, i int) error {
	if i < 0 {
		a.member.leases.Forget(a.lease)
		return backend.ErrLost
	}
	a.token = fence.Token(q.All[i].place)
	return nil
}

func (a *place) Leave(ctx context.Context, others []*item) (bool, error) {
	left, err := ask(ctx, a.way, func() bool { left, _ := a.leave(a.lease.Key, others, false); return left })
	if err == nil && left {
		a.member.leases.Forget(a.lease)
	}
	return left, err
}

func (a *place) Wait(ctx context.Context, _ queue, _ int) (queue, bool, error) {
	gone := a.member.leases.Gone(a.lease)
	for {
		q, moved := a.read(a.req.Name)
		if i := q.Find(a.req.Lease); i < q.Out {
			return q, false, nil
		}
		a.waits = true
		select {
		case <-moved:
		case <-gone:
			return queue{}, false, backend.ErrLost
		case <-a.member.Life.Done():
			return queue{}, false, backend.ErrSessionLost
		case <-ctx.Done():
			return queue{}, false, context.Cause(ctx)
		}
	}
}

func (a *place) Describe(_ context.Context, holders queue) ([]backend.Holder, error) {
	return a.describe(a.req.Name, holders).Holders, nil
}

func (k *keys) describe(lock string, q queue) backend.LockInfo {
	return q.Describe(lock, func(i int) (backend.Holder, bool) {
		h := q.All[i].about
		h.Token, h.Left = fence.Token(q.All[i].place), k.left(q.All[i].owner)/storeTTL
		return h, true
	})
}

// bury deletes the entry of a lease, which no request makes afterwards. It reports whether there was one.
func (w *way) bury(ctx context.Context, k seqlock.Key) (bool, error) {
	return ask(ctx, w, func() bool { _, was := w.leave(k, nil, true); return was })
}

func (st ofKeys) Release(ctx context.Context, _ *member, _ *seqlock.Lease[struct{}], k seqlock.Key, abandon bool) (bool, error) {
	if abandon {
		return st.bury(ctx, k)
	}
	return ask(ctx, st.way, func() bool { _, was := st.leave(k, nil, false); return was })
}

func (st ofKeys) Inspect(ctx context.Context, lock string) (backend.LockInfo, error) {
	q, err := ask(ctx, st.way, func() queue { q, _ := st.read(lock); return q })
	return st.describe(lock, q), err
}

func (st ofKeys) List(ctx context.Context, req *backend.ListRequest) (backend.ListPage, error) {
	names, err := ask(ctx, st.way, func() []string {
		st.mu.Lock()
		defer st.mu.Unlock()
		var names []string
		for name := range maps.Keys(st.queues) {
			names = append(names, backend.EscapeSegment(name))
		}
		return names
	})
	if err != nil {
		return backend.ListPage{}, err
	}
	return seqlock.Page(ctx, req, names, st.Inspect)
}

// breaking is a Break in progress. It implements seqlock.Evictor.
type breaking struct {
	*way

	req *backend.BreakRequest
}

func (st ofKeys) Evictor(_ context.Context, req *backend.BreakRequest) (seqlock.Evictor[*item], error) {
	return breaking{st.way, req}, nil
}

func (b breaking) Holders(ctx context.Context) ([]seqlock.Victim[*item], error) {
	q, err := ask(ctx, b.way, func() queue { q, _ := b.read(b.req.Name); return q.Holders() })
	var all []seqlock.Victim[*item]
	for i, h := range b.describe(b.req.Name, q).Holders {
		all = append(all, seqlock.Victim[*item]{Entry: q.All[i], Holder: h})
	}
	return all, err
}

func (b breaking) Stamp(ctx context.Context) (fence.Token, error) {
	return ask(ctx, b.way, func() fence.Token {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.changes++
		return fence.Token(b.changes)
	})
}

// Evict takes two victims at a time.
func (b breaking) Evict(ctx context.Context, victims []seqlock.Victim[*item]) (int, seqlock.Outcome, error) {
	n := min(2, len(victims))
	done, err := ask(ctx, b.way, func() bool { return b.evict(slices.Clone(victims[:n]), b.req.Reason) })
	switch {
	case notDone(err):
		return n, seqlock.Nothing, err
	case err != nil:
		return n, seqlock.Unknown, err
	case !done:
		return n, seqlock.Moved, nil
	}
	return n, seqlock.Done, nil
}

func TestConformance(t *testing.T) {
	t.Parallel()
	simulate.Suite(t, 20*time.Second, time.Second, func() func() backend.Backend {
		k := newKeys()
		return func() backend.Backend { return on(k, nil) }
	})
}

// TestSimulation simulates hours with the client, with faults on both sides of the engine.
func TestSimulation(t *testing.T) {
	t.Parallel()
	simulate.Hours(t, func(seed uint64) func() backend.Backend {
		k, opened := newKeys(), uint64(0)
		return func() backend.Backend {
			opened++
			if opened == 1 {
				return on(k, nil)
			}
			return on(k, rand.New(rand.NewPCG(seed, opened)))
		}
	})
}

// TestUnknownRelease (C5, C6, C12): a release that had no answer says that the lease may be held. The lease is not granted again,
// whether it was executed or not, and a later release finds out.
func TestUnknownRelease(t *testing.T) {
	t.Parallel()
	for how, want := range map[int32]error{losesRequests: nil, losesAnswers: backend.ErrLost} {
		synctest.Test(t, func(t *testing.T) {
			k := newKeys()
			b, other := leasetest.Opened(t, on(k, nil), nil), leasetest.Opened(t, on(k, nil), nil)
			req := leasetest.Ask("n", leasetest.Session(t, b, time.Minute, nil))
			leasetest.Take(t, b, req)
			give := backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: req.Session}
			b.way.down.Store(how)
			err := b.Release(t.Context(), give)
			if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
				t.Errorf("a release without an answer: %v; want an UnavailableError with MayHold", err)
			}
			b.way.down.Store(0)
			if g, err := b.Acquire(t.Context(), req); !errors.Is(err, backend.ErrLost) {
				t.Errorf("an acquire after the release: %+v, %v; want ErrLost", g, err)
			}
			if err := b.Release(t.Context(), give); !errors.Is(err, want) {
				t.Errorf("the second release: %v; want %v", err, want)
			}
			leasetest.Take(t, other, leasetest.Ask("n", leasetest.Session(t, other, time.Minute, nil)))
		})
	}
}

// TestRefusedInQueue (C11, C12): another limit is in force, and the request with which a lease leaves the queue is refused. The
// error says that the lease may be held.
func TestRefusedInQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newKeys()
		b, other := leasetest.Opened(t, on(k, nil), nil), leasetest.Opened(t, on(k, nil), nil)
		permit := func(b value, limit int) backend.AcquireRequest {
			req := leasetest.Ask("n", leasetest.Session(t, b, time.Minute, nil))
			req.Mode, req.Limit = backend.Shared, limit
			return req
		}
		leasetest.Take(t, other, permit(other, 3))
		req := permit(b, 2)
		b.way.down.Store(refusesTheSecond)
		_, err := b.Acquire(t.Context(), req)
		b.way.down.Store(0)
		if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
			t.Errorf("refused in the queue: %v; want an UnavailableError with MayHold", err)
		}
		if info, err := other.Inspect(t.Context(), "n"); err != nil || len(info.Holders)+len(info.Waiters) != 2 {
			t.Errorf("it is not there: %+v, %v", info, err)
		}
	})
}
