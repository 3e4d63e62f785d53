package backendtest

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func closeCases() []Case {
	const c13 = "after Close, calls under way and later calls get ErrClosed; closing again does nothing"
	return []Case{
		{ID: "C13", Name: "close-ends-the-calls", Rule: c13, run: closeEndsCalls},
		{ID: "C13", Name: "close-refuses-later-calls", Rule: c13, run: closeRefuses},
		{ID: "C13", Name: "close-leaves-the-leases", Rule: "Close ends what the backend value started, not the sessions nor the leases", run: closeLeaves},
	}
}

func closeEndsCalls(e *env) {
	a := e.client()
	name := e.name()
	l := a.take(a.ask(name))
	b := e.client()
	w := b.join(b.ask(name))
	var watching *watching
	if e.caps.Watch {
		watching = e.watch(b.b, name)
	}
	from := time.Now()
	if err := b.b.Close(); err != nil {
		e.Fatalf("Close: %v", err)
	}
	if took := time.Since(from); took > e.soon() {
		e.Errorf("Close took %s", took)
	}
	w.fails(backend.ErrClosed)
	if watching != nil {
		late := time.NewTimer(e.soon())
		defer late.Stop()
		select {
		case err := <-watching.done:
			if !errors.Is(err, backend.ErrClosed) {
				e.stood(time.Since(watching.heard))
				e.Fatalf("Watch returned %v after Close; it has to be ErrClosed", err)
			}
		case <-late.C:
			e.Errorf("Watch does not return after Close")
		}
	}
	e.holds(name, l)
}

func closeRefuses(e *env) {
	a, keeper := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name, e.timed(e.long())))
	for range 2 {
		if err := a.b.Close(); err != nil {
			e.Fatalf("Close: %v", err)
		}
	}
	ctx, cancel := e.within(e.soon())
	defer cancel()
	closed := func(call string, err error) {
		if !errors.Is(err, backend.ErrClosed) {
			e.Errorf("%s after Close: %v; it has to be ErrClosed", call, err)
		}
	}
	for _, wait := range []bool{false, true} {
		for _, n := range []string{name, e.name()} {
			r := a.ask(n)
			r.Wait = wait
			_, err := a.acquire(r)
			closed("Acquire", err)
		}
	}
	if e.caps.Sessions {
		closed("OpenSession", a.b.OpenSession(ctx, backend.SessionRequest{ID: backend.NewSessionID(), TTL: e.long()}))
		closed("EndSession", a.b.EndSession(ctx, a.sess))
	}
	again := backend.RenewRequest{Session: a.sess}
	if e.caps.Timed {
		again.Leases = []backend.TimedRenewal{{Name: name, Lease: l.Lease, TTL: e.long()}}
	}
	_, err := a.b.Renew(ctx, again)
	closed("Renew", err)
	closed("Release", a.release(l.AcquireRequest))
	_, err = a.b.Inspect(ctx, name)
	closed("Inspect", err)
	ended, end := context.WithCancel(ctx)
	end()
	_, err = a.b.Inspect(ended, name)
	closed("Inspect with a context that has ended", err)
	_, err = a.b.List(ctx, backend.ListRequest{Prefix: name})
	closed("List", err)
	_, err = a.b.Break(ctx, backend.BreakRequest{Name: name})
	closed("Break", err)
	if e.caps.Watch {
		closed("Watch", a.b.Watch(ctx, backend.WatchRequest{Prefix: name}, func(x backend.Event) {
			e.Errorf("an event after Close: %+v", x)
		}))
	}
	if again := a.b.Capabilities(); again != e.caps {
		e.Errorf("after Close the capabilities are %+v", again)
	}
	if e.caps.Bound && !l.Timed {
		keeper.give(keeper.start(keeper.ask(name)).granted())
		return
	}
	e.holds(name, l)
	keeper.give(l)
}

func closeLeaves(e *env) {
	if e.caps.Bound {
		closeEndsBound(e)
		return
	}
	a, b := e.client(), e.client()
	name, other := e.name(), e.name()
	l, k := a.take(a.ask(name)), a.take(a.ask(other, e.timed(e.long())))
	if err := a.b.Close(); err != nil {
		e.Fatalf("Close: %v", err)
	}
	b.refused(b.ask(name))
	e.holds(name, l)
	e.holds(other, k)
	if e.caps.Sessions {
		if res := b.renew(backend.RenewRequest{Session: a.sess}); res.SessionLost {
			e.Errorf("the session was lost with the backend value that opened it")
		}
	}
	// The process continues with another value.
	again := &client{e: e, b: e.open(), sess: a.sess, ttl: a.ttl}
	if same := again.take(l.AcquireRequest); same.Token != l.Token {
		e.Errorf("token %d after token %d for one lease", same.Token, l.Token)
	}
	again.give(l)
	again.give(k)
	e.free(name)
	e.free(other)
}

// closeEndsBound: sessions that are tied to a value end with it, and leases that are tied to no
// value stay.
func closeEndsBound(e *env) {
	a, b := e.client(), e.client()
	name, other := e.name(), e.name()
	a.take(a.ask(name))
	k := a.take(a.ask(other, e.timed(e.long())))
	w := b.start(b.ask(name))
	if err := a.b.Close(); err != nil {
		e.Fatalf("Close: %v", err)
	}
	b.give(w.granted())
	if e.caps.Timed {
		e.holds(other, k)
	}
}
