// Package acquire acquires leases and settles those whose outcome is unknown. Package holdfast and the
// server share it: its rules are the same whether the caller is a program or an HTTP request.
//
// An [Agent] works on one backend. [Agent.Acquire] makes attempts under one lease ID, so a lost reply
// never means two grants; [Session] is where leases that wait in a queue have their place;
// [Agent.Settle] releases, in the background, what may be held and belongs to no caller. When
// something is renewed or has ended is decided by package liveness.
package acquire

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/clock"
	"github.com/holdfast-io/holdfast/internal/liveness"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// Config is what an Agent works with. All fields are required.
type Config struct {
	Backend  backend.Backend
	TTL      time.Duration // of the sessions
	Timeout  time.Duration // how long a call that does not wait for a lock is retried
	Logger   *slog.Logger  // receives the problems of background work
	Observer Observer
}

// Observer is what an Agent reports. Its methods may be called with Mu held.
type Observer interface {
	// Renewed: see liveness.Observer.
	Renewed(leases int, margin, took time.Duration, err error)
	// AtRisk: see liveness.Observer.
	AtRisk(leases int, left time.Duration, err error)
	// Ambiguous: the outcome of an operation of a call with this context is unknown, and is settled in
	// the background.
	Ambiguous(ctx context.Context, op string)
}

// Agent acquires leases on one backend, renews them and their sessions, and settles those whose outcome
// is unknown. Its methods are safe for concurrent use, except where they say that Mu is held.
type Agent struct {
	// Mu guards Live, and whatever the callbacks of its leases touch.
	Mu    sync.Mutex
	Live  *liveness.Machine
	Clock clock.Clock

	Config
	caps       backend.Capabilities
	background context.Context //nolint:containedctx // the lifetime of the work that belongs to no call
	stop       context.CancelFunc
	closing    context.Context //nolint:containedctx // ends with ErrClosed when Close begins
	startClose context.CancelCauseFunc
	work       tally         // calls, settlements and renewals in progress: what counts itself then checks whether Close has begun
	second     limiter       // the second attempts of settlements
	further    limiter       // the later ones: apart, because many of them may get no answer
	looks      limiter       // reads of who holds a lock
	lookAgain  atomic.Int64  // not before: such a read was refused
	wake       chan struct{} // wakes the renewer; capacity 1
	kept       chan struct{} // closed when the renewer has ended
	isAway     atomic.Bool   // the store is unavailable, and that was logged
	answered   atomic.Bool   // the store has answered once

	// Guarded by Mu:
	open   map[*liveness.Session]*Session
	loose  attempts   // that need no session
	losses []lossNote // reported by the backend, not yet applied
	warned time.Time  // the quarantine has been logged up to this time
}

// InProgress calls f with the candidate of each attempt in progress. Mu is held.
func (a *Agent) InProgress(f func(Candidate)) {
	for _, x := range a.loose.list {
		f(x.got)
	}
	for _, s := range a.open {
		for _, x := range s.waiting.list {
			f(x.got)
		}
	}
}

// attempts are those in progress that need one session, or none, in no order.
type attempts struct{ list []*attempt }

func (s *attempts) add(x *attempt) {
	x.in, x.slot = s, len(s.list)
	s.list = append(s.list, x)
}

// leave removes the attempt from its list.
func (x *attempt) leave() {
	if x.in == nil {
		return
	}
	list, last := x.in.list, len(x.in.list)-1
	list[x.slot], list[last].slot = list[last], x.slot
	list[last] = nil
	x.in.list, x.in = list[:last], nil
}

// interrupt ends the attempts with that cause.
func (s *attempts) interrupt(cause error) {
	for _, x := range s.list {
		x.in = nil
		x.ctx.end(cause)
	}
	s.list = nil
}

// New returns an agent. It sends nothing.
func New(cfg Config) *Agent {
	a := &Agent{
		Config: cfg, Clock: clock.New(), caps: cfg.Backend.Capabilities(),
		wake: make(chan struct{}, 1), kept: make(chan struct{}), second: newLimiter(), further: newLimiter(), looks: newLimiter(),
		open: make(map[*liveness.Session]*Session),
	}
	a.Live = liveness.New(observer{Observer: cfg.Observer, a: a}, cfg.TTL)
	a.background, a.stop = context.WithCancel(context.Background())
	a.closing, a.startClose = context.WithCancelCause(context.Background())
	go a.keep()
	return a
}

// Begin counts a call in progress, so that Close waits for it until it calls the function returned. It
// returns ErrClosed once Close has begun.
func (a *Agent) Begin() (func(), error) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if a.Closed() {
		return nil, backend.ErrClosed
	}
	return a.Count(), nil
}

// Count is Begin for a call that Close has not ended: it ends something that is held. Mu is held.
func (a *Agent) Count() func() {
	a.work.add()
	return a.work.done
}

// Closed reports whether Close has begun. Where Mu is held, Close does not begin meanwhile.
func (a *Agent) Closed() bool { return a.closing.Err() != nil }

// Background ends when Close has given up waiting.
func (a *Agent) Background() context.Context { return a.background }

// UntilClosed returns a context that ends with ctx, or with ErrClosed when Close begins.
func (a *Agent) UntilClosed(ctx context.Context) (context.Context, context.CancelFunc) {
	return backend.Within(ctx, a.closing)
}

// Sessions returns how many sessions are open. Mu is held.
func (a *Agent) Sessions() int { return len(a.open) }

// Waiting returns how many attempts are in progress. Mu is held.
func (a *Agent) Waiting() int {
	n := len(a.loose.list)
	for _, s := range a.open {
		n += len(s.waiting.list)
	}
	return n
}

// Close ends every attempt in progress with ErrClosed, ends s, releases what give returns, and waits
// for the work in progress. give runs with Mu held. A second Close waits for the first.
//
// If ctx ends before the backend has answered, Close returns the cause of ctx. If the backend is
// unavailable, it returns ErrUnavailable within a few times Timeout.
func (a *Agent) Close(ctx context.Context, s *Session, give func() []backend.ReleaseRequest) error {
	a.Mu.Lock()
	if a.Closed() {
		a.Mu.Unlock()
		return a.closedBefore(ctx)
	}
	a.startClose(backend.ErrClosed) // before what it ends returns
	releases := give()
	last := s.end()
	a.loose.interrupt(backend.ErrClosed)
	for _, other := range a.open {
		other.waiting.interrupt(backend.ErrClosed)
	}
	a.Mu.Unlock()
	err := a.giveBack(ctx, last, releases)
	if late := a.stopWhenIdle(ctx); !errors.Is(err, late) {
		err = errors.Join(err, late)
	}
	<-a.work.whenIdle()
	<-a.kept
	return err
}

// closedBefore waits for the first Close to finish.
func (a *Agent) closedBefore(ctx context.Context) error {
	select {
	case <-a.kept:
		return nil
	default:
	}
	select {
	case <-a.kept:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// giveBack releases everything on the backend.
func (a *Agent) giveBack(ctx context.Context, last ending, releases []backend.ReleaseRequest) error {
	errs := []error{a.tellEnd(ctx, last)}
	for _, req := range releases {
		// A backend that does not answer for one lease does not answer for the others.
		if IsUnavailable(errors.Join(errs...)) || ctx.Err() != nil {
			break
		}
		errs = append(errs, a.retryWith(ctx, retry.Pause, a.Timeout/3, func(ctx context.Context) error { return a.Backend.Release(ctx, req) }))
	}
	return errors.Join(errs...)
}

// stopWhenIdle waits for the calls and settlements in progress, and then ends all background work.
func (a *Agent) stopWhenIdle(ctx context.Context) error {
	patience := time.NewTimer(a.Timeout + LongestPause) // time for one more attempt of those that have a turn
	defer patience.Stop()
	for {
		var err error
		select {
		case <-a.work.whenIdle():
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-patience.C:
			err = &backend.UnavailableError{Backend: a.caps.Name, Op: "close", MayHold: true, Err: context.DeadlineExceeded}
		}
		a.Mu.Lock()
		if err != nil || a.work.isIdle() { // a settlement that has just begun is waited for too
			a.stop()
			a.Mu.Unlock()
			return err
		}
		a.Mu.Unlock()
	}
}
