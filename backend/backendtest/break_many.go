package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

func breakManyCases() []Case {
	const once = "a break takes the lock from exactly those who held it when it began, each once, and names them; it takes nothing from those that it lets in"
	const half = "a break that fails half-way says that it may have worked, lets in no waiter beside a holder in its way, and can be finished by another"
	return []Case{
		{ID: "C10", Name: "a-break-beside-one-arrival", Rule: once, Needs: func(c caps) bool { return c.TokenKind != "votes" }, run: breakBesideOne},
		{ID: "C10", Name: "a-break-of-many-holders", Crowds: true, Rule: once, Needs: needsSharing, run: manyBroken},
		{ID: "C10", Name: "a-break-of-a-full-semaphore", Crowds: true, Rule: once, Needs: func(c caps) bool { return c.Permits }, run: fullBroken},
		{ID: "C10", Name: "a-break-beside-arrivals", Crowds: true, Rule: once, Needs: func(c caps) bool { return c.Shared }, run: breakBesideArrivals},
		{ID: "C10", Name: "two-breaks-side-by-side", Crowds: true, Rule: once, Needs: needsSharing, run: twoBreaks},
		{ID: "C10", Name: "a-break-cut-short", Crowds: true, Rule: half, Needs: needsSharing, run: breakCutShort(false)},
		{ID: "C10", Name: "a-break-whose-process-ends", Crowds: true, Rule: half, Needs: needsSharing, run: breakCutShort(true)},
	}
}

func needsSharing(c caps) bool { return c.Shared || c.Permits }

// manyBroken breaks a lock with as many holders as the store's harness says, and some of them
// leave during the break. An exclusive waiter is granted the lock when all of them are gone.
func manyBroken(e *env) { breakAll(e, e.gather(e.h.Holders, !e.caps.Shared)) }

// fullBroken breaks a lock on which waiters are granted it as soon as there is room.
func fullBroken(e *env) { breakAll(e, e.gather(min(fewHolders, e.h.Holders), true)) }

func breakAll(e *env, c *sharers) {
	sharing, exclusive, last := c.queue(min(sharerQueue, len(c.holders)))
	over := make(chan struct{})
	left := make(chan map[backend.LeaseID]bool, 1)
	go func() {
		left <- c.leave(c.holders[len(c.holders)-min(sharerLeavers, len(c.holders)/4):], sharing, over)
	}()
	began := time.Now()
	res, err := c.tryBreak(e.anyBackend(), strings.Repeat("<", backend.MaxNoteLen)) // six bytes each in JSON
	took := time.Since(began)
	close(over)
	gone := <-left
	if err != nil {
		e.Fatalf("Break of %q: %v", c.name, err)
	}
	e.Logf("%d of %d holders were broken in %s", len(res.Broken), len(c.holders), took.Round(time.Millisecond))
	victims := c.victimsOf(tokensOf(c.holders), res)
	c.checkHolders(victims, gone)
	c.settle(victims, len(gone), sharing, exclusive, last)
	c.checkTold(victims)
}

// tryBreak breaks the lock. On a machine that does much else it may take long: the holders are many, and
// as many may arrive meanwhile.
func (c *sharers) tryBreak(b backend.Backend, reason string) (backend.BreakResult, error) {
	const least, forEach = 20 * time.Second, 20 * time.Millisecond
	within := c.e.soon() + max(least, time.Duration(len(c.holders))*forEach)
	return c.e.breakOn(b, within, backend.BreakRequest{Name: c.name, Reason: reason, Actor: "suite"})
}

// settle checks the outcome of the waiters: those that the break let in keep the lock. Each
// holder that left made room for one of them, which may have been there when the break began.
func (c *sharers) settle(victims map[backend.LeaseID]backend.Holder, room int, sharing []*waiter, exclusive, last *waiter) {
	e := c.e
	if _, ok := victims[exclusive.req.Lease]; ok {
		e.Fatalf("the exclusive waiter %s is named as broken; all others stood in its way", exclusive.req.Lease)
	}
	hit, behind := 0, sharing
	if e.caps.FIFO { // otherwise last need not wait behind the exclusive waiter, and may have the lock when the break begins
		behind = append(slices.Clone(sharing), last)
	}
	for _, w := range behind {
		if _, ok := victims[w.req.Lease]; ok {
			hit++
		}
	}
	if hit > room {
		e.Fatalf("%d of those in the queue are named as broken; only %d holders left before the break, so it let in the others itself", hit, room)
	}
	if !e.caps.FIFO {
		c.settleInAnyOrder(victims, append(sharing, exclusive, last))
		return
	}
	in := make(map[backend.LeaseID]fence.Token)
	for _, w := range sharing {
		if l, ok := c.outcome(w, victims); ok {
			in[l.Lease] = l.Token
		}
	}
	c.after(victims, in)
	if len(in) > 0 {
		exclusive.waits()
		c.checkOut(in)
		for _, w := range sharing {
			if _, ok := in[w.req.Lease]; ok {
				w.c.give(lease{AcquireRequest: w.req, Grant: w.grant})
			}
		}
	}
	x := exclusive.granted()
	c.checkOut(map[backend.LeaseID]fence.Token{x.Lease: x.Token})
	last.waits()
	exclusive.c.give(x)
	l := last.granted()
	c.checkOut(map[backend.LeaseID]fence.Token{l.Lease: l.Token})
	c.after(victims, map[backend.LeaseID]fence.Token{x.Lease: x.Token, l.Lease: l.Token})
}

// outcome waits for the end of a waiter's call, and reports whether the waiter has the lock. A
// victim may have lost it before the call returned.
func (w *waiter) outcome(victims map[backend.LeaseID]backend.Holder) (lease, bool) {
	h, broken := victims[w.req.Lease]
	if !broken {
		return w.granted(), true
	}
	w.returns(w.c.e.soon())
	if w.err != nil && !errors.Is(w.err, backend.ErrLost) {
		w.c.e.Fatalf("Acquire of %s, which a break took: %v; it has to be granted, or ErrLost", describe(w.req), w.err)
	}
	l := lease{AcquireRequest: w.req, Grant: w.grant}
	return l, w.c.e.grantedAgain(l, h)
}

// outcome is that of the waiter. ErrLost told the caller of a victim, and nothing else does: the session never
// had the lease.
func (c *sharers) outcome(w *waiter, victims map[backend.LeaseID]backend.Holder) (lease, bool) {
	l, stays := w.outcome(victims)
	if errors.Is(w.err, backend.ErrLost) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.released[w.req.Lease] = true
	}
	return l, stays
}

// settleInAnyOrder is settle where the store promises no order: each waiter that is granted
// releases the lock, so that all are granted in the end.
func (c *sharers) settleInAnyOrder(victims map[backend.LeaseID]backend.Holder, all []*waiter) {
	in := make([]fence.Token, len(all))
	c.e.times(len(all), func(i int) {
		if l, ok := c.outcome(all[i], victims); ok {
			in[i] = l.Token
			all[i].c.give(l)
		}
	})
	survivors := make(map[backend.LeaseID]fence.Token)
	for i, w := range all {
		if in[i] > 0 {
			survivors[w.req.Lease] = in[i]
		}
	}
	c.after(victims, survivors)
}

// breakBesideOne has a client acquire a free lock while it is broken. Either the break found
// that grant, or the grant came after the break, with a token that is not below the break's.
func breakBesideOne(e *env) {
	const rounds, budget = 60, 2 * time.Second
	c, stop, took := e.client(), time.Now().Add(budget), time.Millisecond
	broken := 0
	for i := 0; i < rounds && time.Now().Before(stop); i++ {
		r := c.ask(e.name())
		r.Wait = true
		var w *waiter
		var res backend.BreakResult
		before := took // so that the break comes at any moment of the way to the lock
		e.all(func() {
			e.until(time.Now().Add(rand.N(2 * time.Millisecond)))
			began := time.Now()
			w = c.start(r)
			w.over(e.soon())
			took = max(time.Since(began), time.Millisecond)
		}, func() {
			e.until(time.Now().Add(rand.N(2*time.Millisecond + before)))
			res = e.breakLock(r.Name, "beside one")
		})
		victims := make(map[backend.LeaseID]backend.Holder)
		for _, h := range res.Broken {
			victims[h.Lease] = h
		}
		l, stays := w.outcome(victims)
		broken += len(victims)
		switch {
		case stays && l.Token < res.Token:
			e.Fatalf("the grant beside a break has token %d, and was not broken; the break returned %d", l.Token, res.Token)
		case stays:
			c.give(l)
		case l.Token >= res.Token:
			e.Fatalf("the victim was granted %d; the break returned %d", l.Token, res.Token)
		}
	}
	e.Logf("%d were broken", broken)
}

// breakBesideArrivals: nothing blocks the clients that arrive during the break. Each of them is
// either a victim, or came after all victims and keeps the lock.
func breakBesideArrivals(e *env) {
	c := e.gather(min(fewHolders, e.h.Holders), false)
	over := make(chan struct{})
	most := max(1, len(c.holders)/len(c.clients)) // of each: twice the holders is what the store has to keep up with
	arrived := make([][]lease, len(c.clients))
	var all sync.WaitGroup
	var first sync.WaitGroup // every process has arrived once
	first.Add(len(c.clients))
	for i, k := range c.clients {
		all.Go(func() {
			begun := sync.OnceFunc(first.Done)
			defer begun()
			for len(arrived[i]) < most {
				r := c.ask(k)
				r.Wait = true
				g, err := c.insist(k, r)
				if errors.Is(err, backend.ErrLost) { // it was broken before it returned, and its caller knows
					c.mu.Lock()
					c.released[r.Lease] = true
					c.mu.Unlock()
				} else if err != nil {
					e.Errorf("Acquire of %s beside a break: %v; it has to be granted", describe(r), err)
					return
				}
				arrived[i] = append(arrived[i], lease{AcquireRequest: r, Grant: g})
				begun()
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	first.Wait()
	leavers := len(c.holders) / 8
	gone := make(chan map[backend.LeaseID]bool, 1)
	go func() { gone <- c.leave(c.holders[:leavers], nil, over) }()
	res, err := c.tryBreak(e.anyBackend(), "arrivals")
	close(over)
	all.Wait()
	if err != nil {
		e.Fatalf("Break of %q: %v", c.name, err)
	}
	e.endIfFailed()
	left := <-gone
	come := slices.Concat(arrived...)
	victims := c.victimsOf(tokensOf(c.holders), res)
	c.checkHolders(victims, left)
	stay := make(map[backend.LeaseID]fence.Token)
	for _, l := range come {
		if h, ok := victims[l.Lease]; !ok || e.grantedAgain(l, h) {
			stay[l.Lease] = l.Token
		} else if l.Token >= res.Token { // the break may know an older token of a lease whose grant was in progress
			e.Errorf("Break returned token %d; a victim was granted %d", res.Token, l.Token)
		}
	}
	e.Logf("%d were broken; %d arrived beside the break, and %d of them stay", len(victims), len(come), len(stay))
	if e.caps.TokenKind != "votes" { // there grants in progress at the same time have no order
		c.after(victims, stay)
	}
	c.checkOut(stay)
	c.checkTold(victims)
}

// twoBreaks: each holder is a victim of one of two breaks, and not of both. One of them may
// take the lock from a waiter that the other let in, and from no waiter behind it.
func twoBreaks(e *env) {
	c := e.gather(min(fewHolders, e.h.Holders), !e.caps.Shared)
	k := e.client()
	ahead := k.start(k.ask(c.name))
	c.lined(ahead)
	behind := k.start(k.ask(c.name))
	c.lined(behind)
	values := []backend.Backend{e.open(), e.open()}
	results := make([]backend.BreakResult, len(values))
	e.times(len(values), func(i int) {
		var err error
		if results[i], err = c.tryBreak(values[i], "two"); err != nil {
			e.Fatalf("Break of %q: %v", c.name, err)
		}
	})
	victims := c.victimsOf(tokensOf(c.holders), results...)
	c.checkHolders(victims, nil)
	queue := []*waiter{ahead, behind}
	survivors := make(map[backend.LeaseID]fence.Token)
	for len(queue) > 0 {
		i := firstDone(e, queue)
		l, ok := queue[i].outcome(victims)
		queue = slices.Delete(queue, i, i+1)
		if ok {
			e.holds(c.name, l)
			k.give(l)
			survivors[l.Lease] = l.Token
		}
	}
	if len(survivors) == 0 {
		e.Errorf("both of those in the queue are named as broken; two breaks can let in one of them before they end")
	}
	c.after(victims, survivors)
}

// breakCutShort ends the context of a break, or closes the value that it was called on, as soon
// as it has taken the lock from a holder.
func breakCutShort(closes bool) func(*env) {
	return func(e *env) {
		c := e.gather(min(fewHolders, e.h.Holders), true)
		sharing, exclusive, last := c.queue(min(sharerQueue, len(c.holders)))
		breaker := e.open()
		ctx, cancel := context.WithCancel(e.ctx)
		defer cancel()
		over := make(chan struct{})
		var err error
		go func() {
			defer close(over)
			_, err = breaker.Break(ctx, backend.BreakRequest{Name: c.name, Reason: cutShort})
		}()
		c.awaitPart(sharing, over)
		if closes {
			if err := breaker.Close(); err != nil {
				e.Errorf("Close: %v", err)
			}
		} else {
			cancel()
		}
		<-over
		c.checkCut(err, exclusive)
		c.finish(sharing, exclusive, last)
	}
}

// checkCut checks the state of the lock after a break that returned err.
func (c *sharers) checkCut(err error, exclusive *waiter) {
	e := c.e
	info := e.inspect(c.name)
	out := make(map[backend.LeaseID]bool)
	used := 0
	for _, h := range info.Holders {
		out[h.Lease] = true
		used += h.Permits
	}
	rest := 0
	for _, l := range c.holders {
		if out[l.Lease] {
			rest++
		}
	}
	e.Logf("Break returned %v; %d of %d holders are left", err, rest, len(c.holders))
	var away *backend.UnavailableError
	switch {
	case err == nil && rest > 0:
		e.Errorf("Break returned success; %d of those who held still hold", rest)
	case err != nil && rest < len(c.holders) && !errors.Is(err, backend.ErrClosed) && (!errors.As(err, &away) || !away.MayHold):
		e.Errorf("Break returned %v (%s); it took the lock from %d holders, so MayHold has to be set", err, mayHold(away), len(c.holders)-rest)
	}
	if c.limit > 0 && used > c.limit {
		e.Errorf("%d permits of %d are held", used, c.limit)
	}
	if rest > 0 && out[exclusive.req.Lease] {
		e.Errorf("the exclusive waiter has the lock beside %d holders", rest)
	}
}

func mayHold(u *backend.UnavailableError) string {
	if u == nil {
		return "not an *UnavailableError"
	}
	return fmt.Sprintf("MayHold %t", u.MayHold)
}

// cutShort is the reason of a break that does not come to its end.
const cutShort = "cut short"

// finish breaks the lock again. Waiters that the first break let in lose it, too; no other
// waiter does. A step of the first break that was on its way when it was cut short, or a holder that it
// asked to release its lease, may be done only now, before the second break reads.
func (c *sharers) finish(sharing []*waiter, exclusive, last *waiter) {
	e := c.e
	before := make(map[backend.LeaseID]bool)
	for _, h := range e.inspect(c.name).Holders {
		before[h.Lease] = true
	}
	res, err := c.tryBreak(e.anyBackend(), "the rest")
	if err != nil {
		e.Fatalf("Break of %q: %v", c.name, err)
	}
	victims := c.victimsOf(tokensOf(c.holders), res)
	for _, l := range c.holders {
		_, broken := victims[l.Lease]
		if before[l.Lease] && !broken && c.lostFor(l, cutShort) {
			continue
		}
		if broken != before[l.Lease] {
			e.Errorf("holder %s held the lock before the second break: %t; it is named as broken: %t", l.Lease, before[l.Lease], broken)
		}
	}
	ends := func(w *waiter) {
		_, ok := w.outcome(victims)
		err := w.c.release(w.req)
		switch {
		case !ok && !errors.Is(err, backend.ErrLost):
			e.Errorf("Release of a broken lease: %v; it has to be ErrLost", err)
		case ok && err != nil && !e.mayBeReleased(w.req.Lease) && (e.caps.FIFO || w != last || !errors.Is(err, backend.ErrLost)):
			e.Errorf("Release of %s after a break was finished: %v", describe(w.req), err)
		}
	}
	all := slices.Concat(sharing, []*waiter{exclusive, last})
	if e.caps.FIFO {
		for _, w := range all {
			ends(w)
		}
	} else { // in any order, and last may have lost its lease by the first break, which does not report its victims
		e.times(len(all), func(i int) { ends(all[i]) })
	}
	for _, l := range c.holders[:min(4, len(c.holders))] {
		if err := c.clientOf(l).release(l.AcquireRequest); !errors.Is(err, backend.ErrLost) {
			e.Errorf("Release of a broken lease: %v; it has to be ErrLost", err)
		}
	}
}
