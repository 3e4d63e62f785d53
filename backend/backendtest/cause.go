package backendtest

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func causeCases() []Case {
	return []Case{
		{ID: "C12", Name: "a-cause-is-no-answer", Rule: "what a context ends with is no answer of the store, whatever it looks like", run: causeIsNoAnswer},
	}
}

// causes are what contexts end with that looks like an answer: that of a lock, and that of an errgroup in
// which another lock was refused.
func causes() []error {
	return []error{
		backend.ErrLost, backend.ErrSessionLost, backend.ErrInvalid,
		&backend.HeldError{Name: "another", Holders: []backend.Holder{{Lease: backend.NewLeaseID(), Token: 1}}, Count: 1},
	}
}

// endings are when the context ends: before the call, and after a while.
func endings() []time.Duration {
	return []time.Duration{0, 50 * time.Microsecond, 300 * time.Microsecond, 2 * time.Millisecond}
}

// endingIn calls f with a context that ends with the cause after d.
func (e *env) endingIn(d time.Duration, cause error, f func(context.Context)) {
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	if d == 0 {
		cancel(cause)
	} else {
		defer time.AfterFunc(d, func() { cancel(cause) }).Stop()
	}
	f(ctx)
}

func causeIsNoAnswer(e *env) {
	if e.caps.Sessions {
		e.renewalsCutShort(backend.ErrSessionLost)
	}
	for _, cause := range causes() {
		e.waitCutShort(cause)
		b := e.open() // whose connections have been cut short before
		for _, d := range endings() {
			e.acquireCutShort(b, d, cause)
			e.releaseCutShort(b, d, cause)
			if e.caps.Sessions {
				e.sessionCutShort(b, d, cause)
			}
		}
	}
}

// waitCutShort has a waiter give up and ask again: it has its place.
func (e *env) waitCutShort(cause error) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name))
	w := b.join(b.ask(name))
	w.cancel(cause)
	w.returns(e.soon())
	if w.err == nil || !errors.Is(w.err, cause) && !errors.Is(w.err, backend.ErrUnavailable) {
		e.Errorf("Acquire returned (%+v, %v) when its context had ended with %v", w.grant, w.err, cause)
	}
	again := b.start(w.req)
	a.give(l)
	b.give(again.granted())
	e.free(name)
}

func (e *env) acquireCutShort(b backend.Backend, d time.Duration, cause error) {
	a := e.on(b, e.long())
	r := a.ask(e.name())
	a.tidy(r)
	e.endingIn(d, cause, func(ctx context.Context) { _, _ = a.b.Acquire(ctx, r) })
	a.abandon(r)
	// Its request may arrive after that.
	if !e.poll(e.soon(), func() bool { info := e.inspect(r.Name); return len(info.Holders)+len(info.Waiters) == 0 }) {
		e.free(r.Name)
	}
}

func (e *env) releaseCutShort(b backend.Backend, d time.Duration, cause error) {
	a := e.on(b, e.long())
	for _, abandon := range []bool{false, true} {
		l := a.take(a.ask(e.name()))
		req := giveBack(l.AcquireRequest)
		req.Abandon = abandon
		e.endingIn(d, cause, func(ctx context.Context) {
			if a.b.Release(ctx, req) == nil {
				e.free(l.Name)
			}
		})
		a.abandon(l.AcquireRequest)
		e.free(l.Name)
	}
}

// renewalsCutShort has renewals cut short at any point.
func (e *env) renewalsCutShort(cause error) {
	const tries, longest = 25, 3 * time.Millisecond
	a := e.client()
	for i := range tries {
		e.endingIn(longest*time.Duration(i)/tries, cause, func(ctx context.Context) {
			if res, err := a.b.Renew(ctx, backend.RenewRequest{Session: a.sess}); err == nil && res.SessionLost {
				e.Errorf("Renew tells that the session is lost; its context ended with %v", cause)
			}
		})
	}
	a.keep()
}

// sessionCutShort confirms and ends a session. Only the end may end it.
func (e *env) sessionCutShort(b backend.Backend, d time.Duration, cause error) {
	a := e.on(b, e.long())
	l := a.take(a.ask(e.name()))
	e.endingIn(d, cause, func(ctx context.Context) {
		_ = a.b.OpenSession(ctx, backend.SessionRequest{ID: a.sess, TTL: a.ttl, Lost: a.lost})
	})
	a.keep()
	e.holds(l.Name, l)
	e.endingIn(d, cause, func(ctx context.Context) {
		if a.b.EndSession(ctx, a.sess) == nil {
			e.free(l.Name)
		}
	})
	a.end()
	e.free(l.Name)
}
