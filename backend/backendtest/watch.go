package backendtest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func watchCases() []Case {
	const rule = "Watch delivers what happens to the locks of a prefix, in order for each lock, after EventWatching"
	needs := func(c caps) bool { return c.Watch }
	return []Case{
		{ID: "C10", Name: "watch-tells-what-happens", Rule: rule, Needs: needs, run: watchTells},
		{ID: "C10", Name: "watch-tells-of-the-queue", Rule: rule, Needs: func(c caps) bool { return c.Watch && c.FIFO }, run: watchQueue},
		{ID: "C10", Name: "watch-tells-of-expiry", Rule: rule, Needs: needs, run: watchExpiry},
		{ID: "C10", Name: "watch-keeps-to-its-prefix", Rule: rule, Needs: needs, run: watchPrefix},
		{ID: "C12", Name: "watch-ends-with-its-context", Rule: "Watch returns the cause of its context", Needs: needs, run: watchEnds},
	}
}

// watching is a Watch in progress.
type watching struct {
	e      *env
	events chan backend.Event
	done   chan error
	cancel context.CancelCauseFunc
	heard  time.Time // of the newest event
}

// watch starts a Watch and waits until it has begun.
func (e *env) watch(b backend.Backend, prefix string) *watching { return e.watchOf(b, prefix, "") }

// watchOf is watch that drops the events of locks whose names do not contain that text: many are of
// other cases.
func (e *env) watchOf(b backend.Backend, prefix, text string) *watching {
	const plenty = 1024
	ctx, cancel := context.WithCancelCause(e.ctx)
	w := &watching{e: e, events: make(chan backend.Event, plenty), done: make(chan error, 1), cancel: cancel, heard: time.Now()}
	over := make(chan struct{})
	go func() {
		defer close(over)
		w.done <- b.Watch(ctx, backend.WatchRequest{Prefix: prefix}, func(x backend.Event) {
			if x.Kind != backend.EventWatching && !strings.Contains(x.Name, text) {
				return
			}
			select {
			case w.events <- x:
			default:
				e.Errorf("more events than anything that happened")
			}
		})
	}()
	e.Cleanup(func() {
		cancel(nil)
		late := time.NewTimer(e.soon())
		defer late.Stop()
		select {
		case <-over:
		case <-late.C:
			e.Errorf("Watch did not return after its context ended")
		}
	})
	if x := w.next(e.soon()); x.Kind != backend.EventWatching || x.Name != "" {
		e.Fatalf("the first event is %+v; it has to be %q, of no lock", x, backend.EventWatching)
	}
	return w
}

func (w *watching) next(within time.Duration) backend.Event {
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case x := <-w.events:
		w.heard = time.Now()
		return x
	case err := <-w.done:
		w.e.stood(time.Since(w.heard))
		w.e.Fatalf("Watch ended: %v", err)
	case <-late.C:
		w.e.Fatalf("no event within %s", within)
	}
	return backend.Event{}
}

// sees waits for the next event, which has to be of this kind and lease.
func (w *watching) sees(kind backend.EventKind, l lease, reason string) {
	w.seesWithin(w.e.soon(), kind, l, reason)
}

func (w *watching) seesWithin(d time.Duration, kind backend.EventKind, l lease, reason string) {
	w.is(w.next(d), kind, l, reason)
}

// is checks an event.
func (w *watching) is(x backend.Event, kind backend.EventKind, l lease, reason string) {
	want := backend.Event{
		Kind: kind, Name: l.Name, Lease: l.Lease, Owner: l.Owner, Mode: l.Mode, Token: l.Token, Reason: reason, At: x.At,
	}
	if x != want {
		if _, lost := w.e.unanswered.Load(l.Lease); lost && l.Timed && l.TTL <= w.e.ttl() { // it may have run out, and was granted again
			w.e.busy(errTooBusy)
		}
		w.e.Fatalf("the next event is %+v; it has to be %+v", x, want)
	}
	if apart := time.Since(x.At).Abs(); apart > clockApart {
		w.e.Errorf("the event %+v is %s from now", x, apart)
	}
}

// seesWaiting waits for the event of a waiter, where there is a queue that it is in, behind a
// lease that expires e.ttl() after from.
func (w *watching) seesWaiting(x *waiter, from span) {
	e := w.e
	if !e.caps.FIFO {
		return
	}
	first := w.next(e.soon())
	if first.Kind == backend.EventExpired && time.Since(from.from) >= e.ttl() {
		e.busy(errTooBusy)
	}
	w.is(first, backend.EventWaiting, x.waiting(), "")
}

// waiting returns the lease as it is while it is queued: without a token.
func (w *waiter) waiting() lease { return lease{AcquireRequest: w.req} }

func watchTells(e *env) {
	a := e.client()
	name := e.name()
	w := e.watch(e.open(), name)
	l := a.take(a.ask(name, owner("w7")))
	w.sees(backend.EventAcquired, l, "")
	a.give(l)
	w.sees(backend.EventReleased, l, "")
	l = a.take(a.ask(name, e.timed(e.long())))
	w.sees(backend.EventAcquired, l, "")
	e.breakLock(name, `the "reason"`)
	w.sees(backend.EventBroken, l, `the "reason"`)
	if e.caps.Shared {
		l = a.take(a.ask(name, shared))
		w.sees(backend.EventAcquired, l, "")
		a.abandon(l.AcquireRequest)
		w.sees(backend.EventReleased, l, "")
	}
	if e.caps.Sessions {
		l = a.take(a.ask(name))
		w.sees(backend.EventAcquired, l, "")
		a.end()
		w.sees(backend.EventReleased, l, "")
	}
}

func watchQueue(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	w := e.watch(e.open(), name)
	l := a.take(a.ask(name, owner("first")))
	w.sees(backend.EventAcquired, l, "")
	one := b.join(b.ask(name, owner("second")))
	w.sees(backend.EventWaiting, one.waiting(), "")
	two := a.join(a.ask(name))
	w.sees(backend.EventWaiting, two.waiting(), "")
	one.giveUp()
	b.abandon(one.req)
	w.sees(backend.EventLeft, one.waiting(), "")
	a.give(l)
	w.sees(backend.EventReleased, l, "")
	l = two.granted()
	w.sees(backend.EventAcquired, l, "")
	three := b.join(b.ask(name))
	w.sees(backend.EventWaiting, three.waiting(), "")
	e.breakLock(name, "why")
	w.sees(backend.EventBroken, l, "why")
	w.sees(backend.EventAcquired, three.granted(), "")
}

func watchExpiry(e *env) {
	a := e.client()
	check := func(take func(name string) (lease, span)) {
		name := e.name()
		w := e.watch(e.open(), name)
		l, from := take(name)
		w.sees(backend.EventAcquired, l, "")
		next := a.start(a.ask(name))
		w.seesWaiting(next, from)
		w.seesWithin(e.ttl()+e.caps.ExpiryLag+e.soon(), backend.EventExpired, l, "")
		w.sees(backend.EventAcquired, next.granted(), "")
	}
	if e.caps.Timed {
		check(func(name string) (lease, span) {
			l := a.take(a.ask(name, timed(e.ttl()), owner("w7")))
			return l, l.asked
		})
	}
	if e.caps.Sessions {
		check(func(name string) (lease, span) {
			b := e.mortal()
			return b.take(b.ask(name)), b.opened
		})
	}
}

func watchPrefix(e *env) {
	a := e.client()
	base := e.name()
	w := e.watch(e.open(), base+"/a_")
	two := e.watchOf(e.open(), "", base)
	for _, s := range []string{"/aXb", "/a", "/A_b", "/b", "/a%"} {
		a.take(a.ask(base + s))
	}
	a.take(a.ask("within/" + base + "/a_b"))
	l := a.take(a.ask(base + "/a_b"))
	w.sees(backend.EventAcquired, l, "")
	for { // the other one sees the events of all clients
		if x := two.next(e.soon()); x.Lease == l.Lease {
			break
		}
	}
	w.cancel(errGaveUp)
	two.cancel(errGaveUp)
}

func watchEnds(e *env) {
	b := e.open()
	w := e.watch(b, e.name())
	w.cancel(errGaveUp)
	late := time.NewTimer(e.soon())
	defer late.Stop()
	select {
	case err := <-w.done:
		if !errors.Is(err, errGaveUp) {
			e.Errorf("Watch returned %v; it has to be the cause of its context, %q", err, errGaveUp)
		}
	case <-late.C:
		e.Fatalf("Watch does not return %s after its context ended", e.soon())
	}
	ctx, cancel := context.WithCancelCause(e.ctx)
	cancel(errGaveUp)
	err := b.Watch(ctx, backend.WatchRequest{Prefix: e.name()}, func(x backend.Event) {
		if x.Kind != backend.EventWatching {
			e.Errorf("an event after the context had ended: %+v", x)
		}
	})
	if !errors.Is(err, errGaveUp) {
		e.Errorf("Watch with a context that had ended returned %v; it has to be its cause, %q", err, errGaveUp)
	}
}
