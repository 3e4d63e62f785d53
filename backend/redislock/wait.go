package redislock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// A waiter sends nothing while it waits. It is woken by a notification. Against lost
// notifications it has an alarm, set to the earliest instant at which what is right ahead of it
// can end. When it fires, the waiter asks what became of it. Many alarms of one Backend fire together,
// because what they wait for ends with one session: then they share requests.

// waiter is one Acquire that waits.
type waiter struct {
	req    backend.AcquireRequest
	result chan verdict // capacity 1; the first verdict counts
	// Guarded by Backend.mu:
	alarm *time.Timer // nil until it is set for the first time
	at    time.Time   // when it fires; zero: it is not set
}

// verdict is the end of a waiter: a grant or an error.
type verdict struct {
	grant backend.Grant
	timed bool // the remaining time of the lease is not known
	err   error
}

const (
	// margin is how much later than the earliest instant the alarm fires. Each Backend adds up to
	// jitter, so that not all ask at the same time.
	margin = 2 * time.Millisecond
	jitter = 8 * time.Millisecond
	// idle is the minimum time between two requests about one waiter.
	idle = 20 * time.Millisecond
)

// wait joins the queue and waits for the lock.
func (b *Backend) wait(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	// Subscribe first, then ask: no notification after the request is missed.
	if err := b.listen(ctx, opAcquire); err != nil {
		return backend.Grant{}, err
	}
	w := b.enter(req)
	defer b.leave(w)
	o, err := b.ask(ctx, req, b.channel)
	inQueue, byTimer := false, false
	for err == nil && o.waits() {
		inQueue = true
		if err = b.setAlarm(w, o); err != nil {
			break
		}
		select {
		case v := <-w.result:
			if v.err != nil || !v.timed && b.cfg.Replicas == 0 {
				return v.grant, v.err
			}
			// A notification does not say when it was sent, so the remaining time is unknown. Nor
			// does it say whether the replicas have the grant.
			byTimer = false
		case <-w.alarm.C:
			byTimer = true
		case <-ctx.Done():
			return backend.Grant{}, context.Cause(ctx)
		case <-b.base.Done():
			return backend.Grant{}, backend.ErrClosed
		}
		o, err = b.check(ctx, w)
	}
	if err != nil {
		return backend.Grant{}, err
	}
	g, err := b.conclude(req, o, byTimer)
	if inQueue {
		err = queued(err)
	}
	return g, err
}

// check asks what became of a waiter that was in the queue. Whatever the error is, it may still be there: the
// caller retries under the same lease ID.
func (b *Backend) check(ctx context.Context, w *waiter) (outcome, error) {
	b.mu.Lock()
	w.at = time.Time{}
	b.mu.Unlock()
	o := b.engine.await(ctx, &call{op: opCheck, terms: terms{session: string(w.req.Session)}, name: w.req.Name, lease: string(w.req.Lease)}, true)
	switch {
	case o.err == nil:
		return o, nil
	case ctx.Err() != nil:
		return outcome{}, context.Cause(ctx)
	}
	b.doubt(w.req)
	return outcome{}, queued(toKind(opAcquire, o.err))
}

// enter registers the waiter, before anything can be pushed to it.
func (b *Backend) enter(req backend.AcquireRequest) *waiter {
	w := &waiter{req: req, result: make(chan verdict, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting[req.Lease] = append(b.waiting[req.Lease], w)
	return w
}

// leave removes the waiter.
func (b *Backend) leave(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	twins := slices.DeleteFunc(b.waiting[w.req.Lease], func(o *waiter) bool { return o == w })
	if b.waiting[w.req.Lease] = twins; len(twins) == 0 {
		delete(b.waiting, w.req.Lease)
	}
}

// setAlarm sets the alarm of a waiter to the instant before which nothing changes, which the server has answered.
func (b *Backend) setAlarm(w *waiter, o outcome) error {
	d := decode(o.answer[1:])
	at := o.asked.Add(d.Micros())
	if d.Err != nil {
		b.doubt(w.req)
		return toKind(opAcquire, &sentError{sent: true, err: d.Err})
	}
	if next := time.Now().Add(idle); at.Before(next) {
		at = next
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checkAt(w, at)
	return nil
}

// checkAt makes the alarm of a waiter fire at the instant, unless it fires earlier. mu is held.
func (b *Backend) checkAt(w *waiter, at time.Time) {
	if !w.at.IsZero() && !at.Before(w.at) {
		return
	}
	w.at = at
	in := max(time.Until(at), 0) + margin + b.jitter
	if w.alarm == nil {
		w.alarm = time.NewTimer(in)
	} else {
		w.alarm.Reset(in)
	}
}

// checkAll makes all waiters ask what became of them. mu is held.
func (b *Backend) checkAll() {
	now := time.Now()
	for _, twins := range b.waiting {
		for _, w := range twins {
			b.checkAt(w, now)
		}
	}
}

func (w *waiter) tell(v verdict) {
	select {
	case w.result <- v:
	default: // it has a verdict
	}
}

// subscription is the subscription of a Backend to its channel.
type subscription struct {
	heard chan struct{} // closed when the server has first confirmed the subscription
	last  error         // why the subscription is broken; guarded by Backend.mu
	times int           // how often it was confirmed; guarded by Backend.mu
}

// listen ensures that the Backend is subscribed to its channel, or is about to be subscribed
// again. In the second case the waiters are checked as soon as it is.
func (b *Backend) listen(ctx context.Context, op string) error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return backend.ErrClosed
	}
	if b.subscription == nil {
		b.subscription = &subscription{heard: make(chan struct{})}
		b.work.Add(1)
		go b.keepListening(b.subscription)
	}
	e := b.subscription
	b.mu.Unlock()
	select {
	case <-e.heard:
		return nil
	default:
	}
	timer := time.NewTimer(b.cfg.RequestTimeout)
	defer timer.Stop()
	select {
	case <-e.heard:
		return nil
	case <-b.base.Done():
		return backend.ErrClosed
	case <-ctx.Done():
		return toKind(op, &sentError{err: context.Cause(ctx)})
	case <-timer.C:
		b.mu.Lock()
		defer b.mu.Unlock()
		return toKind(op, &sentError{err: unheard(e.last)})
	}
}

// keepListening keeps the subscription, and renews it when it breaks.
func (b *Backend) keepListening(e *subscription) {
	defer b.work.Done()
	const shortest, longest = 10 * time.Millisecond, time.Second
	for failures := 0; ; failures++ {
		err := b.link.listen(b.base, b.channel, func() { b.subscribed(e); failures = 0 }, b.receive)
		if b.base.Err() != nil {
			return
		}
		b.mu.Lock()
		e.last = err
		b.mu.Unlock()
		if !retry.Pause(b.base, retry.Delay(failures, shortest, longest)) {
			return
		}
	}
}

// subscribed is called each time the server has confirmed the subscription. Notifications
// since it broke are lost, so all waiters are checked.
func (b *Backend) subscribed(e *subscription) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.times++
	if e.times == 1 {
		close(e.heard)
		return
	}
	b.checkAll()
	b.greetAgain()
}

// greetAgain runs an operation, whichever it is. If the server lost its data, the hello that
// goes with it reports how long the forgotten leases may last. If this operation fails, the
// next one does the same. mu is held.
func (b *Backend) greetAgain() {
	if b.closed {
		return
	}
	b.work.Go(func() { _, _, _ = b.engine.do(b.base, true, "ping") })
}

// receive handles one notification. It does not block.
func (b *Backend) receive(payload string) {
	p, ok := parsePush(payload)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch p.kind {
	case pushGrant:
		v := verdict{timed: p.timed, grant: backend.Grant{Token: p.token, Asked: time.Now(), Since: p.since, Waited: true}}
		b.tell(p.lease, v)
	case pushDropped:
		err := backend.ErrLost
		if p.why == "S" {
			err = backend.ErrSessionLost
		}
		b.tell(p.lease, verdict{err: err})
	case pushAdopted:
		for _, w := range b.waiting[p.lease] {
			if w.req.Session != p.session {
				w.tell(verdict{err: backend.ErrLost})
			}
		}
	case pushLoss:
		b.lose(p)
	case pushTimer:
		for _, w := range b.waiting[p.lease] {
			b.checkAt(w, time.Now().Add(p.left))
		}
	case pushFlushed:
		b.greetAgain()
	}
}

// tell delivers the verdict to all waiters of the lease. mu is held.
func (b *Backend) tell(lease backend.LeaseID, v verdict) {
	for _, w := range b.waiting[lease] {
		w.tell(v)
	}
}

// lose delivers a loss to its session. mu is held.
func (b *Backend) lose(p push) {
	s := b.sessions[p.session]
	if s == nil {
		return
	}
	if p.lease == "" {
		delete(b.sessions, p.session)
	}
	delete(s.thin, p.lease)
	loss := backend.Loss{Session: p.session, Lease: p.lease, Cause: p.cause, Reason: p.reason}
	b.final.Add(loss)
	s.tell(loss)
}

// queued sets MayHold: the lease is in the queue, or was granted from it, whatever became of a
// later request about it.
func queued(err error) error {
	if away, ok := errors.AsType[*backend.UnavailableError](err); ok {
		away.MayHold = true
	}
	return err
}
