package k8slock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Acquire takes the lock, or waits for it in the queue if req.Wait is set. If ctx ends while it
// waits, the place in the queue stays. Errors: *InvalidError, *LimitError, *HeldError, ErrLost,
// ErrSessionLost, ErrUnsupported, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	if err := req.Validate(b.caps); err != nil {
		return backend.Grant{}, err
	}
	ctx, cancel, err := backend.Begin(ctx, b.base)
	if err != nil {
		return backend.Grant{}, err
	}
	defer cancel()
	s, err := b.session(req.Session)
	if err != nil {
		return backend.Grant{}, err
	}
	a := &acquisition{
		b: b, s: s, req: &req, key: lockstate.Key{Name: req.Name, ID: req.Lease}, at: objectName(req.Name), asked: time.Now(), verdict: make(chan verdict, 1),
	}
	inner, leave, err := a.begin(ctx)
	if err != nil {
		return backend.Grant{}, err
	}
	defer leave()
	g, err := a.run(inner)
	granted := err == nil
	if granted && s.left() <= 0 {
		err = s.confirm(ctx)
	}
	switch {
	case err == nil && a.abandoned():
		return backend.Grant{}, backend.ErrLost
	case err == nil:
		return g, nil
	case b.base.Err() != nil:
		return backend.Grant{}, backend.ErrClosed
	case s.life.Err() != nil && ctx.Err() == nil:
		return backend.Grant{}, backend.ErrSessionLost
	case a.abandoned() && ctx.Err() == nil:
		return backend.Grant{}, backend.ErrLost
	case inner.Err() != nil && ctx.Err() == nil:
		return backend.Grant{}, backend.ErrLost // it was released while it waited
	case a.waiting && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return backend.Grant{}, err
	}
	err = b.fail(ctx, opAcquire, err, true)
	if away, ok := errors.AsType[*backend.UnavailableError](err); ok && (a.waiting || granted) {
		away.MayHold = true // it is in the queue, whatever was refused since
	}
	return backend.Grant{}, err
}

// confirm asks whether a session lives that is past its end here: the answer to a renewal may be on its
// way. ErrSessionLost: it does not.
func (s *session) confirm(ctx context.Context) error {
	live, err := s.b.lives(ctx, s.id, true)
	if err == nil && !live {
		err = backend.ErrSessionLost
	}
	return err
}

// acquisition is one Acquire in progress.
type acquisition struct {
	b       *Backend
	s       *session
	req     *backend.AcquireRequest
	key     lockstate.Key
	at      string
	asked   time.Time
	waiting bool
	stop    context.CancelFunc
	verdict chan verdict // capacity 1: while it waits, that it is held, or gone
}

type verdict struct {
	entry   entry
	byTimer bool
	err     error
}

// begin registers the acquire until the function that it returns is called. There may be several at the same
// time under one lease ID. The context ends with the session, and when the lease is released. ErrLost: it was
// abandoned.
func (a *acquisition) begin(ctx context.Context) (context.Context, func(), error) {
	b := a.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.abandoned() {
		return nil, nil, backend.ErrLost
	}
	ctx, a.stop = context.WithCancel(ctx)
	stop := context.AfterFunc(a.s.life, a.stop)
	b.asking[a.key] = append(b.asking[a.key], a)
	return ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.asking[a.key] = slices.DeleteFunc(b.asking[a.key], func(x *acquisition) bool { return x == a }); len(b.asking[a.key]) == 0 {
			delete(b.asking, a.key)
		}
		stop()
		a.stop()
	}, nil
}

// abandoned reports whether the lease must not come to life.
func (a *acquisition) abandoned() bool { return a.b.abandoned.Has(sessionLease{a.s.id, a.key}) }

func (a *acquisition) run(ctx context.Context) (backend.Grant, error) {
	var now entry
	var outcome error
	c := &change{creates: true, apply: func(r *record) bool {
		now, outcome = a.join(r)
		return errors.Is(outcome, backend.ErrHeld)
	}}
	for {
		if err := a.b.do(ctx, a.req.Name, c); err != nil {
			return backend.Grant{}, err
		}
		if a.req.Wait || !errors.Is(outcome, backend.ErrHeld) || !a.b.observe(ctx, a.req.Name) {
			break
		}
	}
	switch {
	case outcome != nil:
		return backend.Grant{}, outcome
	case now.Token > 0:
		return a.grant(now, false, false)
	}
	a.waiting = true
	return a.wait(ctx)
}

// join puts the lease in the queue, and takes the lock if it is immediately its turn. An entry
// without a token waits.
func (a *acquisition) join(r *record) (entry, error) {
	req := a.req
	i := r.find(req.Lease)
	switch {
	case i >= 0 && r.Queue[i].Session != req.Session && r.Queue[i].Token > 0:
		return entry{}, backend.ErrLost // it will die with the other session
	case i >= 0 && r.Queue[i].Token > 0:
		r.touch = true // a release of it may be on its way
		return r.Queue[i], nil
	case i >= 0:
		if r.Queue[i].Session != req.Session {
			r.Queue[i].Session, r.changed = req.Session, true
		}
		if !req.Wait {
			return entry{}, a.refusal(r, i) // it keeps the place that it had
		}
		return r.Queue[i], nil
	}
	claims := r.claims()
	if err := req.Claim().CheckLimit(req.Name, claims); err != nil {
		return entry{}, err
	}
	fits := !r.foreign && r.out() == len(r.Queue) && req.Claim().Fits(claims) && r.grants < perWrite
	if !fits && !req.Wait {
		return entry{}, a.refusal(r, len(r.Queue))
	}
	clock := a.b.rest.clock.now()
	r.Queue = append(r.Queue, entry{
		Lease: req.Lease, Session: req.Session, Mode: req.Mode, Limit: req.Limit, Permits: req.Permits,
		Owner: req.Owner, Note: req.Note, Asked: clock.UnixMilli(),
	})
	r.changed, r.joined = true, true
	r.promote(clock)
	return r.Queue[len(r.Queue)-1], nil
}

func (a *acquisition) refusal(r *record, ahead int) error {
	if err := a.req.Claim().CheckLimit(a.req.Name, r.claims()); err != nil {
		return err
	}
	return backend.NewHeldError(a.req.Name, r.describe().Holders, 0, max(0, ahead-r.out()))
}

func (a *acquisition) grant(e entry, waited, byTimer bool) (backend.Grant, error) {
	if !a.b.cache.hold(a.at, e.Lease, a.s, e) {
		return backend.Grant{}, backend.ErrLost
	}
	if a.s.life.Err() != nil {
		a.b.cache.letGo(a.at, e.Lease)
		return backend.Grant{}, backend.ErrSessionLost
	}
	return backend.Grant{Token: e.Token, Asked: a.asked, Since: time.UnixMilli(e.Granted), Waited: waited, ByTimer: byTimer}, nil
}

// see tells an acquire that waits what became of its lease, unless it was told already. nil: there is no such
// entry.
func (a *acquisition) see(e *entry, byTimer bool) {
	if e != nil && e.Token == 0 {
		return // it waits
	}
	v := verdict{err: backend.ErrLost}
	if e != nil && e.Session == a.req.Session { // otherwise another session has adopted its place
		v = verdict{entry: *e, byTimer: byTimer}
	}
	select {
	case a.verdict <- v:
	default: // it was told
	}
}

// defaultSafety is how often a waiter reads its lock although the watch reported nothing.
const defaultSafety = 30 * time.Second

// wait waits until the lease is held. The watch reports that; an event that the watch lost costs a
// timer.
func (a *acquisition) wait(ctx context.Context) (backend.Grant, error) {
	leave := a.queue()
	defer leave()
	timer := time.NewTimer(a.b.safety)
	defer timer.Stop()
	for {
		select {
		case v := <-a.verdict:
			if v.err != nil {
				return backend.Grant{}, v.err
			}
			return a.grant(v.entry, true, v.byTimer)
		case <-ctx.Done():
			return backend.Grant{}, context.Cause(ctx)
		case <-timer.C:
			a.look(ctx)
			timer.Reset(a.b.safety)
		}
	}
}

// queue has the acquire told the known state of the lock and every later one.
func (a *acquisition) queue() func() {
	b, m, at := a.b, &a.b.cache, a.at
	m.mu.Lock()
	if m.waiters[at] == nil {
		m.waiters[at] = make(map[*acquisition]struct{})
	}
	m.waiters[at][a] = struct{}{}
	s := m.objects[at]
	switch {
	case s == nil:
		a.see(nil, false)
	case s.record != nil: // the others were told of it when it was learnt
		a.see(s.record.entry(a.req.Lease), false)
	}
	wait, due := m.due(at, s)
	foreign := s != nil && s.record != nil && s.record.foreign
	m.mu.Unlock()
	if due {
		b.background(func() { b.tidy(s.lock, wait) })
	}
	if foreign {
		b.lookAgain()
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.waiters[at], a)
		if len(m.waiters[at]) == 0 {
			delete(m.waiters, at)
		}
	}
}

// look reads the lock when the timer fires and tells the waiters here. It does not wait for a slot:
// meanwhile the waiter would not learn that it was granted the lock.
func (a *acquisition) look(ctx context.Context) {
	select {
	case a.b.slots <- struct{}{}:
		defer func() { <-a.b.slots }()
	default:
		return // again in a while
	}
	ctx, cancel := backend.WithTimeout(ctx, attempt)
	defer cancel()
	o, err := a.b.rest.get(ctx, a.at)
	if err != nil {
		return // again in a while
	}
	a.b.learnBy(o, true)
}
