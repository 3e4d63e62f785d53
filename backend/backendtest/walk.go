package backendtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// kinds returns the options that a random walk may use.
type kinds func() []option

func exclusiveOnly() []option { return nil }

func sharedToo() []option {
	if rand.IntN(3) == 0 {
		return nil
	}
	return []option{shared}
}

func permitsToo() []option {
	const limit = 3
	if k := rand.IntN(limit + 1); k > 0 {
		return []option{permits(limit, k)}
	}
	return nil
}

// walk lets several processes acquire, wait, give up, renew and release as chance has
// it, and tracks what is out.
func walk(e *env, kind kinds) {
	const processes, each, steps, budget = 3, 3, 60, 3 * time.Second
	name := e.name()
	w := &walker{e: e, name: name, kind: kind, track: e.track()}
	clients := make([]*client, processes)
	e.times(processes, func(i int) { clients[i] = e.client() })
	w.stop = time.Now().Add(budget)
	e.times(processes*each, func(i int) {
		for range steps {
			if w.grants.Load() > 0 && time.Now().After(w.stop) { // before a grant the walk shows nothing, however busy the machine
				return
			}
			w.step(clients[i%processes])
		}
	})
	e.Logf("%d grants, %d refusals, %d gave up", w.grants.Load(), w.refusals.Load(), w.gaveUp.Load())
	if w.grants.Load() == 0 {
		e.Fatalf("no client was granted a lock")
	}
	e.free(name)
}

type walker struct {
	e                        *env
	name                     string
	kind                     kinds
	track                    *tracker
	stop                     time.Time
	grants, refusals, gaveUp atomic.Int32
}

// step is one acquisition from beginning to end.
func (w *walker) step(c *client) {
	opts := slices.Clone(w.kind())
	if rand.IntN(4) == 0 {
		opts = append(opts, w.e.timed(w.e.long()))
	}
	r := c.ask(w.name, opts...)
	r.Wait = rand.IntN(4) > 0
	patience := w.e.soon()
	if rand.IntN(3) == 0 {
		patience = rand.N(maxPatience)
	}
	ctx, cancel := w.e.within(patience)
	defer cancel()
	var g backend.Grant
	var err error
	if r.Wait && patience == w.e.soon() && rand.IntN(4) == 0 {
		g, err = w.twice(ctx, c, r)
	} else {
		g, err = c.b.Acquire(ctx, r)
	}
	switch {
	case err == nil:
		w.grants.Add(1)
		w.hold(c, r, g)
	case errors.Is(err, backend.ErrHeld) && !r.Wait:
		w.refusals.Add(1)
	case ctx.Err() != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrUnavailable)):
		if patience == w.e.soon() {
			w.e.Fatalf("Acquire of %s waited for %s; Inspect reports %+v", describe(r), patience, w.e.inspect(w.name))
		}
		w.gaveUp.Add(1)
		c.abandon(r)
	case errors.Is(err, backend.ErrUnavailable) && !r.Wait && !w.e.caps.FIFO: // where there are votes they may split
		w.refusals.Add(1)
		c.abandon(r)
	default:
		w.e.Fatalf("Acquire of %s: %v", describe(r), err)
	}
}

// twice sends a request twice concurrently, as a client does that lost a reply: it is one
// grant.
func (w *walker) twice(ctx context.Context, c *client, r backend.AcquireRequest) (backend.Grant, error) {
	var again backend.Grant
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		again, failed = c.b.Acquire(ctx, r)
	}()
	g, err := c.b.Acquire(ctx, r)
	<-done
	if err == nil && (failed != nil || again.Token != g.Token) {
		w.e.Errorf("the same Acquire, sent twice concurrently, returned token %d and (%+v, %v)", g.Token, again, failed)
	}
	return g, err
}

// How long a walker waits in the queue when it is impatient, and holds a lease when it is slow.
const (
	maxPatience = 5 * time.Millisecond
	maxHold     = 2 * time.Millisecond
)

// hold keeps the lease for a short time.
func (w *walker) hold(c *client, r backend.AcquireRequest, g backend.Grant) {
	w.track.got(r, g)
	if rand.IntN(3) == 0 {
		w.e.until(time.Now().Add(rand.N(maxHold)))
	}
	if rand.IntN(4) == 0 && r.Timed {
		if x := c.renewLease(r, r.TTL); x.Err != nil || x.Token != g.Token {
			w.e.Errorf("Renew of %s with token %d returned %+v", describe(r), g.Token, x)
		}
	}
	w.track.gone(r)
	if rand.IntN(4) == 0 {
		c.abandon(r)
		return
	}
	if err := c.releaseHeld(r); err != nil {
		w.e.Fatalf("Release of %s: %v; it was held", describe(r), err)
	}
}

// breakWalk has operators break the lock while others acquire and release it. The victims do
// not learn of it immediately, so what they believe they hold overlaps. But every request that
// is sent after a token was seen is granted a greater one.
func breakWalk(e *env) {
	const processes, each, steps, budget = 3, 3, 40, 3 * time.Second
	name := e.name()
	clients := make([]*client, processes)
	e.times(processes, func(i int) { clients[i] = e.client() })
	stop, patience := time.Now().Add(budget), time.Now().Add(budget+3*e.soon())
	var tokens seen
	var broken atomic.Int64
	answered := false // the operator's
	walkers := make([]func(), 0, processes*each+1)
	for i := range processes * each {
		walkers = append(walkers, func() {
			for range steps {
				if time.Now().After(stop) {
					return
				}
				breakStep(clients[i%processes], name, &tokens)
			}
		})
	}
	walkers = append(walkers, func() {
		for range steps {
			if now := time.Now(); now.After(stop) && (answered || now.After(patience)) {
				return // a busy server answers when the others have ended
			}
			before := tokens.greatest()
			res, err := e.tryBreak(name, "", "walk")
			switch {
			case errors.Is(err, backend.ErrUnavailable): // a busy server did not answer in time; the rule holds whatever became of it
				e.Logf("Break: %v", err)
				continue
			case err != nil:
				e.Fatalf("Break of %q: %v", name, err)
			}
			answered = true
			if uint64(res.Token) <= before && len(res.Broken) > 0 {
				e.Fatalf("Break returned token %d after token %d was seen", res.Token, before)
			}
			for _, h := range res.Broken {
				if h.Token >= res.Token {
					e.Fatalf("Break returned token %d, and a victim has %d", res.Token, h.Token)
				}
			}
			tokens.sees(uint64(res.Token) - 1) // a later grant may have the token of the break
			broken.Add(int64(len(res.Broken)))
			e.until(time.Now().Add(rand.N(maxHold)))
		}
	})
	e.all(walkers...)
	if !answered {
		e.Fatalf("no Break was answered")
	}
	e.Logf("%d leases were broken", broken.Load())
	e.free(name)
}

// breakStep is one acquisition that may be broken.
func breakStep(c *client, name string, tokens *seen) {
	e := c.e
	r := c.ask(name)
	r.Wait = true
	before := tokens.greatest()
	g, err := c.acquire(r)
	switch {
	case errors.Is(err, backend.ErrLost): // broken before it was ours
		return
	case err != nil:
		e.Fatalf("Acquire of %s: %v; Inspect reports %+v", describe(r), err, e.inspect(name))
	case uint64(g.Token) <= before:
		e.Fatalf("%s was granted with token %d; token %d had been seen before it was requested", describe(r), g.Token, before)
	}
	tokens.sees(uint64(g.Token))
	if rand.IntN(2) == 0 {
		e.until(time.Now().Add(rand.N(maxHold)))
	}
	if err = c.release(r); err != nil && !errors.Is(err, backend.ErrLost) {
		e.Fatalf("Release of %s: %v", describe(r), err)
	}
}

// seen is the greatest token that any client has seen.
type seen struct{ token atomic.Uint64 }

func (s *seen) greatest() uint64 { return s.token.Load() }

func (s *seen) sees(t uint64) {
	for {
		old := s.token.Load()
		if t <= old || s.token.CompareAndSwap(old, t) {
			return
		}
	}
}
