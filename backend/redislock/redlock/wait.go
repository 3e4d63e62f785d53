package redlock

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// A waiter sends nothing while it waits. Of the waiters for one lock in this process only the
// first runs rounds, so that a release does not wake a crowd. It is woken by the
// notifications that the nodes publish when votes are released. Against lost notifications it
// has a timer, set to when the leases in its way can end.

const (
	// gather is how long a majority is waited for to publish the same release: a round
	// before that would find too few votes.
	gather = 3 * time.Millisecond
	// confirm is how long a subscription is waited for before the next round is run anyway.
	confirm = 100 * time.Millisecond
	// idle is the minimum time between two rounds for a lock that other leases have.
	idle = 20 * time.Millisecond
	// lingers is how long the subscription is kept after the last waiter has left.
	lingers = time.Second
	// longestDoubt bounds the pause while nodes that do not answer may know of more votes.
	longestDoubt = time.Second
	// maxHeard bounds the releases that are recorded for a lock.
	maxHeard = 64
)

// queue is the waiters for one lock in this process. Backend.mu guards it.
type queue struct {
	name    string
	waiters []*waiter                  // the first of them runs rounds
	timer   *time.Timer                // while there are waiters: of gather; else of lingers
	wanted  bool                       // a subscription was requested at the nodes
	heard   map[backend.LeaseID]uint64 // by node: it published the release
}

// waiter is an Acquire that waits.
type waiter struct {
	lease     backend.LeaseID
	abandoned bool          // guarded by Backend.mu
	wake      chan struct{} // capacity 1: see turnOf
}

func (w *waiter) poke() {
	select {
	case w.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// wait blocks until the lease is granted.
func (a *acquisition) wait(ctx context.Context) (backend.Grant, error) {
	b := a.b
	l, w := b.enter(a.req.Name, a.req.Lease)
	defer b.leave(l, w)
	waited, byTimer, doubt := false, false, idle
	for {
		select {
		case <-w.wake: // what follows sees what the signal was for
		default:
		}
		queued, err := a.queue(ctx, l, w)
		if err != nil {
			return backend.Grant{}, err
		}
		waited = waited || queued
		listening := b.listening(l)
		v := a.round(ctx)
		rest, wake := v.again, w.wake
		switch {
		case v.kind == granted:
			v.grant.Waited, v.grant.ByTimer = waited, byTimer
			return v.grant, nil
		case v.kind == failed, errors.Is(v.err, backend.ErrLimit) && v.kind == held:
			return backend.Grant{}, v.err
		case v.kind == split:
			wake = nil // the pause is random so that the others are not met again
		case v.kind == inDoubt:
			doubt = min(2*doubt, longestDoubt)
			rest = retry.About(doubt)
		case !listening:
			b.subscribe(l)
			rest = min(rest, confirm)
		default:
			rest = max(rest, idle) + retry.About(idle/4)
		}
		woken := !retry.Until(rest, ctx.Done(), wake)
		if ctx.Err() != nil {
			return backend.Grant{}, context.Cause(ctx)
		}
		if v.kind != split {
			waited, byTimer = true, !woken
		}
	}
}

// queue waits until the waiter is the first, and reports whether it had to. A retry for a lease
// that is held, because a reply was lost, becomes the first: it may be the lease that the others
// wait for.
func (a *acquisition) queue(ctx context.Context, l *queue, w *waiter) (bool, error) {
	first, err := a.b.turnOf(l, w)
	if first || err != nil {
		return false, err
	}
	a.giveBack()
	isOut, err := a.isOut(ctx)
	if err != nil {
		return false, err
	}
	if isOut {
		a.b.promote(l, w)
		return false, nil
	}
	for {
		if first, err = a.b.turnOf(l, w); first || err != nil {
			return true, err
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return true, context.Cause(ctx)
		}
	}
}

// isOut reports whether the lease may have a majority of the votes.
func (a *acquisition) isOut(ctx context.Context) (bool, error) {
	found := 0
	p, err := a.b.ask(ctx, one("has", a.req.Name, string(a.req.Lease)), func(p *poll, x answer) need {
		d := decode(x.list)
		found += int(d.Number())
		return p.enough(a.b.majority, found >= a.b.majority || found+p.silent() < a.b.majority)
	})
	return found > 0 && found+p.silent() >= a.b.majority, err
}

// enter adds a waiter to those of this process, after the others for its lease: when one of them
// has it, so have all.
func (b *Backend) enter(name string, lease backend.LeaseID) (*queue, *waiter) {
	w := &waiter{lease: lease, wake: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.queues[name]
	if !ok {
		l = &queue{name: name, heard: make(map[backend.LeaseID]uint64)}
		b.queues[name] = l
		l.timer = time.AfterFunc(time.Hour, func() { b.due(l) })
	}
	at := len(l.waiters)
	if at == 0 {
		l.timer.Stop()
	}
	for i, other := range l.waiters {
		if other.lease == lease {
			at = i + 1
		}
	}
	l.waiters = slices.Insert(l.waiters, at, w)
	return l, w
}

// turnOf reports whether the waiter is the first, and may run rounds. One that becomes the first by the
// end of another is woken. The error is ErrLost if its lease was abandoned; its waiters are woken.
func (b *Backend) turnOf(l *queue, w *waiter) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.abandoned {
		return false, backend.ErrLost
	}
	return l.waiters[0] == w, nil
}

// promote makes the waiter the first. The one that was finds that before its next round.
func (b *Backend) promote(l *queue, w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(l.waiters, w)
	l.waiters = slices.Insert(slices.Delete(l.waiters, i, i+1), 0, w)
}

// leave removes the waiter, and lets the next one run rounds.
func (b *Backend) leave(l *queue, w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(l.waiters, w)
	l.waiters = slices.Delete(l.waiters, i, i+1)
	switch {
	case len(l.waiters) == 0 && !l.wanted:
		delete(b.queues, l.name)
	case len(l.waiters) == 0 && !b.closed:
		l.timer.Reset(lingers)
	case i == 0:
		l.wake()
	}
}

// due wakes the first waiter, or removes a queue that has none.
func (b *Backend) due(l *queue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(l.waiters) > 0 {
		l.wake()
	} else if !b.closed && b.queues[l.name] == l {
		delete(b.queues, l.name)
		b.adjust()
	}
}

// quit ends the waiters of a lease that was abandoned.
func (b *Backend) quit(name string, lease backend.LeaseID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.queues[name]
	if l == nil {
		return
	}
	for _, w := range l.waiters {
		if w.lease == lease {
			w.abandoned = true
			w.poke()
		}
	}
}

// listening reports whether releases are published to this Backend.
func (b *Backend) listening(l *queue) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.subscribed(l.name)
}

// subscribed reports whether a majority publishes the releases of a lock to this Backend: no
// quorum of votes is without one of these nodes. mu is held.
func (b *Backend) subscribed(name string) bool {
	n := 0
	for _, node := range b.nodes {
		n += toInt(node.channels[name])
	}
	return n >= b.majority
}

// subscribe requests a subscription to releases at all nodes.
func (b *Backend) subscribe(l *queue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || l.wanted {
		return
	}
	l.wanted = true
	if !b.ears {
		b.ears = true
		for _, n := range b.nodes {
			b.work.Go(n.listen)
		}
	}
	b.adjust()
}

// adjust makes the subscriptions at all nodes follow the queues.
func (b *Backend) adjust() {
	for _, n := range b.nodes {
		select {
		case n.changed <- struct{}{}:
		default: // a signal is pending already
		}
	}
}

// heard is called when a node has published that votes of a lease were released.
func (b *Backend) heard(node int, name string, lease backend.LeaseID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.queues[name]
	if l == nil || b.closed || len(l.waiters) == 0 {
		return
	}
	before := l.heard[lease]
	if before&(1<<node) != 0 {
		before = 0 // its votes were released before, and it had the lock later
	}
	if before == 0 && len(l.heard) >= maxHeard {
		clear(l.heard)
	}
	now := before | 1<<node
	l.heard[lease] = now
	switch bits.OnesCount64(now) {
	case b.majority:
		l.timer.Stop()
		l.wake()
	case 1:
		l.timer.Reset(gather)
	}
}

// wake wakes the first waiter. Backend.mu is held.
func (l *queue) wake() {
	if len(l.waiters) > 0 {
		l.waiters[0].poke()
	}
}
