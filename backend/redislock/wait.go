package redislock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// A waiter sends nothing while it waits. It is woken by a notification. Against lost
// notifications there is one timer for each lock that this Backend waits for, set to the
// earliest instant at which what is ahead of its waiters can end. When it fires, one request
// asks for the state of those waiters.

// waiter is one Acquire that waits.
type waiter struct {
	req     backend.AcquireRequest
	result  chan verdict // capacity 1; the first verdict counts
	inQueue bool         // confirmed by the server; guarded by Backend.mu
}

// verdict is the end of a waiter: a grant or an error.
type verdict struct {
	grant backend.Grant
	timed bool // pushed, and the remaining time is not known
	err   error
}

// watched is a lock that this Backend waits for. All fields are guarded by Backend.mu.
type watched struct {
	name    string
	waiters []*waiter   // in order of arrival here
	timer   *time.Timer // nil until there is something to wait for
	at      time.Time   // when the timer fires; zero: it is not set
}

const (
	// margin is how much later than the earliest instant the timer fires. jitter is added to
	// it, so that not all clients ask at the same time.
	margin = 2 * time.Millisecond
	jitter = 8 * time.Millisecond
	// idle is the minimum time between two requests about one lock.
	idle = 20 * time.Millisecond
	// askedAtOnce is the number of waiters of one lock that one request names. All waiters
	// are asked about: the first one here need not be the first on the server.
	askedAtOnce = 256
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
	switch {
	case err != nil:
		return backend.Grant{}, err
	case o.answer == nil || o.answer[0].S == "G":
		return b.accept(req, o)
	case o.answer[0].S != "WAIT":
		return backend.Grant{}, b.refused(req, o.answer)
	}
	d := decode(o.answer[1:])
	left := d.Micros()
	if d.Err != nil {
		b.doubt(req)
		return backend.Grant{}, toKind(opAcquire, &sentError{sent: true, err: d.Err})
	}
	b.stands(w, o.asked.Add(left))
	select {
	case v := <-w.result:
		return b.conclude(ctx, w, v)
	case <-ctx.Done():
		return backend.Grant{}, context.Cause(ctx)
	case <-b.base.Done():
		return backend.Grant{}, backend.ErrClosed
	}
}

// conclude turns the verdict into the result of Acquire.
func (b *Backend) conclude(ctx context.Context, w *waiter, v verdict) (backend.Grant, error) {
	if v.err != nil || !v.timed && b.cfg.Replicas == 0 {
		return v.grant, v.err
	}
	// A notification does not say when it was sent, so the remaining time is unknown. Nor does
	// it say whether the replicas have the grant. The check does not join the queue again if
	// the lease has ended in the meantime.
	answer, asked, err := b.engine.do(ctx, true, "check", w.req.Name, "1", string(w.req.Lease), string(w.req.Session))
	if err != nil {
		b.doubt(w.req)
		return backend.Grant{}, queued(toKind(opAcquire, err))
	}
	d := decode(answer)
	if word := d.Text(); word != "OK" {
		return backend.Grant{}, queued(b.refused(w.req, answer))
	}
	d.Int()
	found := b.judge(d.Items(), asked)
	switch {
	case found == nil:
		return backend.Grant{}, toKind(opAcquire, &sentError{sent: true, err: program.ErrReply})
	case found.err != nil:
		return backend.Grant{}, found.err
	}
	found.grant.ByTimer = v.grant.ByTimer
	return found.grant, nil
}

// enter registers the waiter, before anything can be pushed to it.
func (b *Backend) enter(req backend.AcquireRequest) *waiter {
	w := &waiter{req: req, result: make(chan verdict, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.locks[req.Name]
	if l == nil {
		l = &watched{name: req.Name}
		b.locks[req.Name] = l
	}
	l.waiters = append(l.waiters, w)
	b.waiting[req.Lease] = append(b.waiting[req.Lease], w)
	return w
}

// leave removes the waiter.
func (b *Backend) leave(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	same := func(o *waiter) bool { return o == w }
	l := b.locks[w.req.Name]
	if l.waiters = slices.DeleteFunc(l.waiters, same); len(l.waiters) == 0 {
		if l.timer != nil {
			l.timer.Stop()
		}
		delete(b.locks, w.req.Name)
	}
	twins := slices.DeleteFunc(b.waiting[w.req.Lease], same)
	if b.waiting[w.req.Lease] = twins; len(twins) == 0 {
		delete(b.waiting, w.req.Lease)
	}
}

// stands records that the waiter is in the queue, and that nothing changes before at.
func (b *Backend) stands(w *waiter, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.inQueue = true
	if l := b.locks[w.req.Name]; l != nil {
		b.schedule(l, at)
	}
}

// schedule makes the timer fire at the instant, unless it fires earlier. mu is held.
func (b *Backend) schedule(l *watched, at time.Time) {
	if b.closed || !l.at.IsZero() && !at.Before(l.at) {
		return
	}
	l.at = at
	in := max(time.Until(at), 0) + margin + rand.N(jitter)
	if l.timer == nil {
		l.timer = time.AfterFunc(in, func() { b.fire(l) })
	} else {
		l.timer.Reset(in)
	}
}

// fire asks for the state of the waiters of a lock.
func (b *Backend) fire(l *watched) {
	b.mu.Lock()
	if b.closed || b.locks[l.name] != l {
		b.mu.Unlock()
		return
	}
	b.work.Add(1)
	defer b.work.Done()
	l.at = time.Time{}
	var asked []question
	for _, w := range l.waiters {
		asked = append(asked, question{w, w.inQueue})
	}
	b.mu.Unlock()

	err := b.inquire(l, asked)
	if err == nil {
		return
	}
	// Their callers retry under the same lease ID, and they keep their places.
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range l.waiters {
		if w.inQueue {
			b.inDoubt(w.req)
			w.tell(verdict{err: queued(toKind(opAcquire, err))})
		}
	}
}

// inquire asks about the waiters, at most askedAtOnce in one request.
func (b *Backend) inquire(l *watched, waiters []question) error {
	for asked := range slices.Chunk(waiters, askedAtOnce) {
		args := []string{l.name, itoa(len(asked))}
		for _, w := range asked {
			args = append(args, string(w.req.Lease), string(w.req.Session))
		}
		answer, at, err := b.engine.do(b.base, true, "check", args...)
		if err == nil {
			err = b.settle(l, asked, answer, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// question is a waiter that the server is asked about.
type question struct {
	*waiter
	known bool // it was known to be in the queue before the request
}

// settle delivers the server's answer to the waiters, and sets the timer.
func (b *Backend) settle(l *watched, waiters []question, answer []reply, asked time.Time) error {
	d := decode(answer)
	if d.Text() != "OK" {
		return refusal(opAcquire, new(decode(answer)), l.name, 0)
	}
	left := d.Micros()
	b.mu.Lock()
	defer b.mu.Unlock()
	more := false
	for _, w := range waiters {
		items := d.Items()
		if d.Err != nil {
			return &sentError{sent: true, err: d.Err}
		}
		// The request of a waiter that the server does not know may not have reached it yet,
		// and may have done so since. If the waiter were now reported as lost, it would leave
		// its place to a ghost.
		if v := b.judge(items, asked); v != nil && (v.err == nil || w.known) {
			w.tell(*v)
			more = more || v.err == nil
		}
	}
	next := time.Now().Add(idle)
	if at := asked.Add(left); !more && at.After(next) {
		next = at
	}
	b.schedule(l, next)
	return nil
}

// judge reads the result of check for one waiter. It returns nil while the waiter waits.
func (b *Backend) judge(items []reply, asked time.Time) *verdict {
	d := decode(items)
	switch d.Text() {
	case "G":
		g := d.grant()
		if d.Err != nil {
			return &verdict{err: toKind(opAcquire, &sentError{sent: true, err: d.Err})}
		}
		v := verdict{grant: g.grant(asked)}
		// The notification of a grant that this very request made was not missed.
		v.grant.ByTimer = !g.fresh
		return &v
	case "W":
		return nil
	case "SESSION":
		return &verdict{err: backend.ErrSessionLost}
	case "LOST":
		return &verdict{err: backend.ErrLost}
	default:
		return &verdict{err: toKind(opAcquire, &sentError{sent: true, err: program.ErrReply})}
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
	for _, l := range b.locks {
		b.schedule(l, time.Now())
	}
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
		if l := b.locks[p.name]; l != nil {
			b.schedule(l, time.Now().Add(p.left))
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
