package redlock

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"strings"
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
	name      string
	waiters   []*waiter // the first of them runs rounds
	linger    *time.Timer
	gathering *time.Timer
	early     bool                       // some may run rounds before their turn
	wanted    bool                       // a subscription was requested at the nodes
	confirmed uint64                     // by node: its subscription stands
	heard     map[backend.LeaseID]uint64 // by node: it published the release
}

// waiter is an Acquire that waits.
type waiter struct {
	lease backend.LeaseID
	turn  chan struct{} // closed when it may run rounds
	gone  chan struct{} // closed when its lease was abandoned
	wake  chan struct{} // capacity 1
}

// first reports whether it may run rounds.
func (w *waiter) first() bool {
	select {
	case <-w.turn:
		return true
	default:
		return false
	}
}

// ask lets it run rounds. Backend.mu is held.
func (w *waiter) ask() {
	if !w.first() {
		close(w.turn)
	}
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
	defer func() { b.leave(l, w) }()
	waited, err := a.queue(ctx, w)
	if err != nil {
		return backend.Grant{}, err
	}
	byTimer, doubt := false, idle
	for {
		select {
		case <-w.wake: // the next round sees what the signal was for
		default:
		}
		listening := b.listening(l)
		v := a.round(ctx)
		var rest time.Duration
		switch {
		case v.kind == granted:
			v.grant.Waited, v.grant.ByTimer = waited, byTimer
			b.twins(l, w)
			return v.grant, nil
		case v.kind == failed, errors.Is(v.err, backend.ErrLimit) && v.kind == held:
			return backend.Grant{}, v.err
		case v.kind == split:
			if err := a.rest(ctx, w, v.again, nil); err != nil {
				return backend.Grant{}, err
			}
			continue
		case v.kind == inDoubt:
			doubt = min(2*doubt, longestDoubt)
			rest = retry.About(doubt)
		case !listening:
			b.subscribe(l)
			rest = min(v.again, confirm)
		default:
			rest = max(v.again, idle) + retry.About(idle/4)
		}
		if !w.first() { // its lease is not held after all
			if err := a.rest(ctx, w, retry.About(idle), &waited); err != nil {
				return backend.Grant{}, err
			}
			if waited, err = a.queue(ctx, w); err != nil {
				return backend.Grant{}, err
			}
			continue
		}
		waited = true
		woken := false
		if err := a.rest(ctx, w, rest, &woken); err != nil {
			return backend.Grant{}, err
		}
		byTimer = !woken
	}
}

// queue waits for the turn, and reports whether it had to. A retry for a lease that is held,
// because a reply was lost, does not wait: it may be the lease that the others wait for.
func (a *acquisition) queue(ctx context.Context, w *waiter) (bool, error) {
	if w.first() {
		return false, nil
	}
	out, err := a.isOut(ctx)
	if out || err != nil {
		return false, err
	}
	select {
	case <-w.turn:
		return true, nil
	case <-w.gone:
		return true, backend.ErrLost
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
}

// isOut reports whether the lease may have a majority of the votes.
func (a *acquisition) isOut(ctx context.Context) (bool, error) {
	p := a.b.ask(one("has", a.req.Name, string(a.req.Lease)))
	found := 0
	err := p.collect(ctx, func(x answer) need {
		d := decode(x.list)
		found += int(d.Number())
		switch {
		case found >= a.b.majority, found+p.silent() < a.b.majority:
			return nobody
		case p.good >= a.b.majority:
			return soon
		}
		return everyone
	})
	return found > 0 && found+p.silent() >= a.b.majority, err
}

// rest waits for d, or, with woken set, until the waiter is woken if that is earlier.
func (a *acquisition) rest(ctx context.Context, w *waiter, d time.Duration, woken *bool) error {
	t := time.NewTimer(d)
	defer t.Stop()
	var wake chan struct{}
	if woken != nil {
		wake = w.wake
	}
	select {
	case <-t.C:
		return nil
	case <-wake:
		*woken = true
		return nil
	case <-w.gone:
		a.giveUp()
		return backend.ErrLost
	case <-ctx.Done():
		a.giveUp()
		return context.Cause(ctx)
	}
}

// enter adds a waiter to those of this process.
func (b *Backend) enter(name string, lease backend.LeaseID) (*queue, *waiter) {
	w := &waiter{lease: lease, turn: make(chan struct{}), gone: make(chan struct{}), wake: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.queues[name]
	if !ok {
		l = &queue{name: name, heard: make(map[backend.LeaseID]uint64)}
		b.queues[name] = l
		l.gathering = time.AfterFunc(time.Hour, func() { b.wakeFirst(l) })
		l.gathering.Stop()
		l.linger = time.AfterFunc(time.Hour, func() { b.dissolve(l) })
	}
	l.linger.Stop()
	l.waiters = append(l.waiters, w)
	if len(l.waiters) == 1 {
		w.ask()
	}
	return l, w
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
		l.linger.Reset(lingers)
	case len(l.waiters) > 0 && i == 0:
		l.waiters[0].ask()
	}
}

// twins lets the other waiters for the same lease run rounds, now that it is held.
func (b *Backend) twins(l *queue, w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, other := range l.waiters {
		if other != w && other.lease == w.lease {
			other.ask()
			other.poke()
			l.early = true
		}
	}
}

// dissolve removes a queue that has no waiters.
func (b *Backend) dissolve(l *queue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(l.waiters) > 0 || b.queues[l.name] != l {
		return
	}
	delete(b.queues, l.name)
	for _, e := range b.ears {
		e.want(b.key("w:"+l.name), false)
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
		if w.lease != lease {
			continue
		}
		select {
		case <-w.gone:
		default:
			close(w.gone)
		}
	}
}

// listening reports whether a majority publishes releases to this Backend: no quorum of votes
// is without one of these nodes.
func (b *Backend) listening(l *queue) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bits.OnesCount64(l.confirmed) >= b.majority
}

// subscribe requests a subscription to releases at all nodes.
func (b *Backend) subscribe(l *queue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || l.wanted {
		return
	}
	l.wanted = true
	if b.ears == nil {
		for i, n := range b.nodes {
			e := &listener{b: b, i: i, link: n.link, wanted: make(map[string]bool), changed: make(chan struct{}, 1)}
			b.ears = append(b.ears, e)
			b.work.Go(e.run)
		}
	}
	for _, e := range b.ears {
		e.want(b.key("w:"+l.name), true)
	}
}

// confirmed is called when a node has confirmed the subscription. Once a majority has, another
// round is run: a release may have been published before.
func (b *Backend) confirmed(node int, channel string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.queues[strings.TrimPrefix(channel, b.key("w:"))]
	if l == nil {
		return
	}
	l.confirmed |= 1 << node
	if bits.OnesCount64(l.confirmed) >= b.majority {
		l.wake()
	}
}

// deaf is called when the subscriptions at a node have ended.
func (b *Backend) deaf(node int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.queues {
		l.confirmed &^= 1 << node
	}
}

// heard is called when a node has published that votes of a lease were released.
func (b *Backend) heard(node int, channel, lease string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.queues[strings.TrimPrefix(channel, b.key("w:"))]
	if l == nil || b.closed {
		return
	}
	id := backend.LeaseID(lease)
	before := l.heard[id]
	if before == 0 && len(l.heard) >= maxHeard {
		clear(l.heard)
	}
	now := before | 1<<node
	l.heard[id] = now
	switch bits.OnesCount64(now) {
	case b.majority:
		l.gathering.Stop()
		l.wake()
	case 1:
		l.gathering.Reset(gather)
	}
}

// wakeFirst wakes the first waiter.
func (b *Backend) wakeFirst(l *queue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.wake()
}

// wake wakes the first waiter, and those that run rounds before their turn. Backend.mu is
// held.
func (l *queue) wake() {
	for i, w := range l.waiters {
		if i > 0 && !l.early {
			return
		}
		if w.first() {
			w.poke()
		}
	}
}
