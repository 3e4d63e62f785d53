package backendtest

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

func tokenCases() []Case {
	const c2 = "the tokens of one lock strictly increase in the order of grants"
	return []Case{
		{ID: "C2", Name: "tokens-rise-with-every-grant", Rule: c2, run: tokensRise},
		{ID: "C2", Name: "tokens-rise-along-the-queue", Rule: c2, run: tokensAlongQueue},
		{ID: "C2", Name: "tokens-rise-after-re-creation", Rule: c2 + ", also when nothing was left of the lock in between", run: tokensAfterReCreation},
		{ID: "C2", Name: "tokens-rise-after-expiry", Rule: c2 + ", also across expiry", run: tokensAfterExpiry},
		{ID: "C2", Name: "tokens-rise-after-break", Rule: c2 + ", also across a break, which raises the token", run: tokensAfterBreak},
		{ID: "C2", Name: "random-walk-with-breaks", Rule: c2 + ", whoever breaks the lock meanwhile", run: breakWalk},
		{ID: "C2", Name: "tokens-are-not-shared-at-once", Rule: "no two grants of one lock have the same token, unless one joined the other", Needs: needsShared, run: tokensUnique},
	}
}

// rising checks tokens in the order in which they were granted.
type rising struct {
	e    *env
	last fence.Token
}

func (r *rising) next(what string, t fence.Token) {
	if t <= r.last {
		r.e.Fatalf("%s has token %d after token %d", what, t, r.last)
	}
	r.last = t
}

func tokensRise(e *env) {
	const rounds = 20
	clients := []*client{e.client(), e.client()}
	name := e.name()
	tokens := rising{e: e}
	for i := range rounds {
		c := clients[i%len(clients)]
		var opts []option
		if e.caps.Shared && i%3 == 1 {
			opts = append(opts, shared)
		}
		if i%4 == 2 {
			opts = append(opts, e.timed(e.long()))
		}
		l := c.take(c.ask(name, opts...))
		tokens.next("the grant", l.Token)
		if h := e.inspect(name).Holders; len(h) != 1 || h[0].Token != l.Token {
			e.Fatalf("Inspect reports the holders %+v; the grant had token %d", h, l.Token)
		}
		c.give(l)
	}
}

func tokensAlongQueue(e *env) {
	const n = 6
	a, b := e.client(), e.client()
	name := e.name()
	l, holder := a.take(a.ask(name)), a
	tokens := rising{e: e}
	tokens.next("the first", l.Token)
	var queue []*waiter
	for i := range n {
		c := []*client{a, b}[i%2]
		queue = append(queue, c.join(c.ask(name)))
	}
	for len(queue) > 0 {
		e.other(holder, a).give(l)
		i := firstDone(e, queue)
		l, holder = queue[i].granted(), queue[i].c
		tokens.next("the next", l.Token)
		queue = slices.Delete(queue, i, i+1)
	}
}

// tokensAfterReCreation leaves nothing of the lock behind: no holder, no session and no backend
// value.
func tokensAfterReCreation(e *env) {
	const rounds = 4
	name := e.name()
	tokens := rising{e: e}
	for range rounds {
		b := e.open()
		c := e.on(b, e.long())
		l := c.take(c.ask(name))
		tokens.next("the grant", l.Token)
		c.give(l)
		l = c.take(c.ask(name))
		tokens.next("the second grant", l.Token)
		if e.caps.Sessions {
			c.end()
		} else {
			c.give(l)
		}
		if err := b.Close(); err != nil {
			e.Fatalf("Close: %v", err)
		}
		e.free(name)
	}
}

func tokensAfterExpiry(e *env) {
	a := e.client()
	name := e.name()
	tokens := rising{e: e}
	_, l, from := e.brief(name)
	tokens.next("the first", l.Token)
	next := a.start(a.ask(name)).freed(from, e.ttl())
	tokens.next("the one after the expiry", next.Token)
}

func tokensAfterBreak(e *env) {
	const rounds = 3
	a := e.client()
	name := e.name()
	tokens := rising{e: e}
	for range rounds {
		tokens.next("the grant", a.take(a.ask(name)).Token)
		res := e.breakLock(name, "test")
		tokens.next("the break", res.Token)
		e.free(name)
		after := a.take(a.ask(name))
		if after.Token < res.Token {
			e.Fatalf("the grant after a break has token %d; the break returned %d", after.Token, res.Token)
		}
		tokens.last = max(tokens.last, after.Token)
		a.give(after)
	}
	res := e.breakLock(name, "the lock is free")
	if l := a.take(a.ask(name)); l.Token < res.Token || l.Token <= tokens.last {
		e.Fatalf("token %d after a break that returned %d and a grant that had %d", l.Token, res.Token, tokens.last)
	}
}

func tokensUnique(e *env) {
	const n = 12
	clients := []*client{e.client(), e.client(), e.client()}
	name := e.name()
	tokens := make([]fence.Token, n)
	e.times(n, func(i int) {
		c := clients[i%len(clients)]
		tokens[i] = c.take(c.ask(name, shared)).Token
	})
	slices.Sort(tokens)
	if unique := slices.Compact(slices.Clone(tokens)); len(unique) != n {
		e.Fatalf("%d grants have the tokens %v", n, tokens)
	}
	var told []fence.Token
	for _, h := range e.inspect(name).Holders {
		told = append(told, h.Token)
	}
	if !slices.Equal(told, tokens) {
		e.Fatalf("Inspect reports the tokens %v; the holders, in the order of their grants, have %v", told, tokens)
	}
}

// breakLock breaks the lock.
func (e *env) breakLock(name, reason string) backend.BreakResult {
	return e.breakLease(name, "", reason)
}

func (e *env) breakLease(name string, lease backend.LeaseID, reason string) backend.BreakResult {
	res, err := e.tryBreak(name, lease, reason)
	if err != nil {
		e.Fatalf("Break of %q: %v", name, err)
	}
	return res
}

// tryBreak breaks the lock, and returns to the caller the error of a store that does not answer
// in time.
func (e *env) tryBreak(name string, lease backend.LeaseID, reason string) (backend.BreakResult, error) {
	return e.breakOn(e.anyBackend(), e.soon(), backend.BreakRequest{Name: name, Lease: lease, Reason: reason, Actor: "suite"})
}

// breakOn breaks a lock within that time. It is unknown whom a break took that stood still, and a second one
// would not name them: then Fatalf does not judge the case. A break that only ends with its context fails.
func (e *env) breakOn(b backend.Backend, within time.Duration, req backend.BreakRequest) (backend.BreakResult, error) {
	ctx, cancel := e.within(within)
	defer cancel()
	began := time.Now()
	res, err := b.Break(ctx, req)
	if took := time.Since(began); errors.Is(err, backend.ErrUnavailable) && took < within {
		e.stood(took)
	}
	return res, err
}
