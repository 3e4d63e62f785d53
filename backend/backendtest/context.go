package backendtest

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func contextCases() []Case {
	const c12 = "a call ends with its context at the latest"
	return []Case{
		{ID: "C12", Name: "a-wait-ends-with-its-context", Rule: c12 + ": Acquire in the queue returns the cause of its context", run: waitEnds},
		{ID: "C12", Name: "a-wait-ends-at-its-deadline", Rule: c12, run: waitDeadline},
		{ID: "C12", Name: "a-context-that-has-ended", Rule: c12 + ", also when it had ended before", run: contextEnded},
	}
}

func waitEnds(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name))
	w := b.join(b.ask(name))
	w.waits()
	w.giveUp()
	e.holds(name, l)
	b.abandon(w.req)
}

func waitDeadline(e *env) {
	const patience = 50 * time.Millisecond
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name))
	r := b.ask(name)
	r.Wait = true
	from := time.Now() // before the time of the context begins
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	g, err := b.b.Acquire(ctx, r)
	took := time.Since(from)
	if err == nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, backend.ErrUnavailable) {
		e.Errorf("Acquire returned (%+v, %v); it has to be the cause of its context", g, err)
	}
	if took < patience || took > patience+e.soon() {
		e.Errorf("Acquire returned after %s; it was to wait for %s", took, patience)
	}
	e.holds(name, l)
	b.abandon(r)
}

// contextEnded makes every call with a context that has ended. Each call returns immediately,
// and what it may have done can be undone.
func contextEnded(e *env) {
	a := e.client()
	ctx, cancel := context.WithCancelCause(e.ctx)
	cancel(errGaveUp)
	name := e.name()
	held := a.take(a.ask(e.name(), e.timed(e.long())))
	call := func(what string, f func() error) {
		from := time.Now()
		err := f()
		if took := time.Since(from); took > e.soon() {
			e.Errorf("%s took %s with a context that had ended", what, took)
		}
		if err != nil && !errors.Is(err, errGaveUp) && !errors.Is(err, context.Canceled) && !errors.Is(err, backend.ErrUnavailable) {
			e.Errorf("%s with a context that had ended: %v; it has to be its cause", what, err)
		}
	}
	for _, wait := range []bool{false, true} {
		r := a.ask(name)
		r.Wait = wait
		call("Acquire", func() error {
			_, err := a.b.Acquire(ctx, r)
			return err
		})
		a.abandon(r)
	}
	r := a.ask(held.Name)
	r.Wait = true
	call("Acquire of what is held", func() error {
		_, err := a.b.Acquire(ctx, r)
		if err == nil {
			e.Errorf("Acquire of a lock that is held was granted")
		}
		return err
	})
	a.abandon(r)
	call("Inspect", func() error {
		_, err := a.b.Inspect(ctx, name)
		return err
	})
	call("List", func() error {
		_, err := a.b.List(ctx, backend.ListRequest{Prefix: name})
		return err
	})
	call("Renew", func() error {
		_, err := a.b.Renew(ctx, backend.RenewRequest{Session: a.sess})
		return err
	})
	call("Break", func() error {
		_, err := a.b.Break(ctx, backend.BreakRequest{Name: name})
		return err
	})
	call("Release", func() error {
		return a.b.Release(ctx, giveBack(r))
	})
	if e.caps.Sessions {
		call("OpenSession", func() error {
			return a.b.OpenSession(ctx, backend.SessionRequest{ID: a.sess, TTL: a.ttl})
		})
		call("EndSession", func() error {
			return a.b.EndSession(ctx, backend.NewSessionID())
		})
	}
	e.holds(held.Name, held)
	e.free(name)
	a.give(a.take(a.ask(name)))
}
