package acquire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/clock"
	"github.com/holdfast-io/holdfast/internal/liveness"
)

// Request is one acquisition.
type Request struct {
	// AcquireRequest is what is sent. Acquire sets the Session and the Lease.
	backend.AcquireRequest
	// Patience is how long to wait: negative: until the context ends; 0: the request does not wait,
	// and an unavailable backend is retried for Config.Timeout.
	Patience time.Duration
	// Session is the session of the lease, or of its place in the queue. Required where the backend has
	// sessions and the request waits or the lease is not timed.
	Session *Session
	// Fixed is the lease ID if the caller made it. Such a lease is never released here: another client
	// may have retried with the same ID, and may hold it by now.
	Fixed backend.LeaseID
	// Mark is added to the end of the lease IDs that Acquire makes.
	Mark string
	// Candidates makes the candidate of each attempt.
	Candidates Maker
}

// Maker makes candidates.
type Maker interface{ Candidate() Candidate }

// Candidate is what a lease becomes if it is granted. Lost may be called before Accept: the lease can
// then no longer be accepted.
type Candidate interface {
	liveness.Holder
	// Lease returns the same lease each time. Acquire sets its Name, ID, Session, Timed, Life and Late.
	Lease() *liveness.Lease
	// Accept takes the grant over, unless the lease has ended already. The request left at sent or
	// later. From then on, releasing the lease is the candidate's. Agent.Mu is held.
	Accept(ctx context.Context, g backend.Grant, sent clock.Instant) error
}

// Error is why an acquisition failed whose outcome was unknown at some point.
type Error struct {
	// MayHold: the lease may be held on the backend in spite of the error.
	MayHold bool
	Err     error
}

// Error returns the text of Err.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// MayHold reports whether the lease that err is about may be held on the backend.
func MayHold(err error) bool {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.MayHold
	}
	away, ok := errors.AsType[*backend.UnavailableError](err)
	return ok && away.MayHold
}

// acquisition is one call of Acquire, with as many attempts as it needs.
type acquisition struct {
	*Agent
	req     *Request
	sess    *liveness.Session // of the last attempt; may be nil
	unknown bool              // an attempt was cut short: the lease may be held
	away    error             // the last ErrUnavailable
	began   clock.Instant     // the first attempt
	// givenUp are the leases of earlier attempts that are being released in the background. Until
	// that is done they may hold the lock.
	givenUp []backend.LeaseID
}

var (
	errWaitOver = errors.New("the wait time has elapsed")
	// errSessionEnded interrupts the attempts that need a session which has ended on this side.
	errSessionEnded = fmt.Errorf("%w: it has ended on this side", backend.ErrSessionLost)
)

// Validate checks a request before anything is sent, with placeholders for the IDs.
func Validate(req backend.AcquireRequest, caps backend.Capabilities) error {
	req.Lease = "0000000000000000"
	if caps.Sessions {
		req.Session = "0000000000000000"
	}
	return req.Validate(caps)
}

// Acquire makes attempts until the lock is granted or a further attempt is pointless. It returns the
// candidate that accepted the grant. It changes req, which belongs to one acquisition. When it fails, a lease
// that may have been granted, or is in the queue, is released: see Withdrawal. That continues in the background.
//
// Errors: ErrHeld after Patience; the cause of ctx, with a *backend.HeldError if that was the last answer, or if
// the deadline of ctx ended the wait and another client holds the lock; ErrUnavailable; ErrClosed; ErrInvalid and
// ErrUnsupported from the backend; ErrLost if Fixed names a lease that has ended. An *Error says whether
// the lease may be held.
func (a *Agent) Acquire(ctx context.Context, req *Request) (Candidate, error) {
	a.work.add() // prepare then checks whether Close has begun
	defer a.work.done()
	switch {
	case a.closing.Err() != nil:
		return nil, backend.ErrClosed
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	q := acquisition{Agent: a, req: req}
	q.chooseLease()
	return q.run(ctx)
}

func (a *acquisition) run(ctx context.Context) (Candidate, error) {
	patient, finish := a.bound(ctx)
	defer finish()
	for n := 0; ; n++ {
		x, err := a.prepare(patient)
		if err == nil {
			if err = a.attempt(ctx, x); err == nil {
				return x.got, nil
			}
		}
		if a.again(patient, err, n) {
			continue
		}
		if a.req.Patience > 0 && isOver(ctx, patient) && (!IsUnavailable(err) || hasEnded(err)) && a.closing.Err() == nil {
			if x, err = a.last(ctx); err == nil {
				return x.got, nil
			}
		}
		return nil, a.fail(ctx, patient, err)
	}
}

// hasEnded reports whether err is a quarantine that has ended: it says nothing about the lock now.
func hasEnded(err error) bool {
	q, ok := errors.AsType[*backend.QuarantineError](err)
	return ok && q.Until.Before(time.Now())
}

// bound limits the attempts to the time that the caller wants to wait, or, if it does not want to
// wait, to the time for which an unavailable backend is retried.
func (a *acquisition) bound(ctx context.Context) (context.Context, func()) {
	patience := a.req.Patience
	switch {
	case patience < 0:
		return ctx, func() {}
	case patience == 0:
		patience = a.Timeout
	}
	bound := within(ctx, patience, errWaitOver)
	return bound, bound.finish
}

// attempt is one request in progress.
type attempt struct {
	ctx    requestContext
	got    Candidate
	missed time.Duration // see clock.Clock.At
	begun  clock.Instant
	in     *attempts // nil once it is not in progress, or is interrupted
	slot   int       // in that list
}

// prepare registers the next attempt, so that a loss reported while its request is in progress is not
// missed. The lease ID stays the same, so that a lost reply does not mean two grants. A new session
// brings a new lease ID: a lease of the old session that was granted after all would die with that
// session.
func (a *acquisition) prepare(ctx context.Context) (*attempt, error) {
	now, missed := a.Clock.Read()
	if a.began == 0 {
		a.began = now
	}
	x := &attempt{ctx: requestContext{Context: ctx}, got: a.req.Candidates.Candidate(), missed: missed, begun: now}
	a.Mu.Lock()
	defer a.Mu.Unlock()
	var sess *liveness.Session
	others := &a.loose
	if a.caps.Sessions && (a.req.Wait || !a.req.Timed) {
		var err error
		if sess, err = a.req.Session.obtain(ctx, now); err != nil {
			return nil, err
		}
		others = &a.req.Session.waiting
	}
	if sess != nil && sess != a.sess {
		if a.sess != nil && a.req.Fixed == "" {
			a.abandon()
		}
		a.sess, a.req.AcquireRequest.Session = sess, sess.ID
	}
	l := x.got.Lease()
	l.Name, l.ID, l.Session = a.req.Name, a.req.Lease, sess
	l.Timed, l.Life, l.Late = a.req.Timed, a.req.TTL, a.unknown
	switch {
	case a.Closed():
		return nil, backend.ErrClosed
	case !a.Live.Expect(l):
		return nil, backend.ErrSessionLost
	}
	others.add(x)
	return x, nil
}

// chooseLease chooses the lease ID of the attempts from now on.
func (a *acquisition) chooseLease() {
	a.req.Lease = a.req.Fixed
	if a.req.Lease == "" {
		a.req.Lease = backend.NewLeaseID() + backend.LeaseID(a.req.Mark)
	}
}

// attempt sends one request.
func (a *acquisition) attempt(ctx context.Context, x *attempt) error {
	grant, err := a.Backend.Acquire(&x.ctx, a.req.AcquireRequest)
	cut := IsCutShort(&x.ctx, err)
	if cut {
		err = context.Cause(&x.ctx)
	}
	switch {
	case errors.Is(err, backend.ErrSessionLost) && (!cut || errors.Is(err, errSessionEnded)):
		a.unknown = a.unknown || a.req.Timed // it may have been granted before, and does not end with its session
	case cut:
		a.unknown = true
	}
	switch {
	case cut:
	case !IsUnavailable(err):
		a.back(true)
	case time.Duration(a.Clock.Now()-x.begun) >= a.Timeout: // a call that waited for so long was in the queue
		a.back(false)
	}
	x.ctx.finish()
	a.Mu.Lock()
	defer a.Mu.Unlock()
	x.leave()
	if err == nil {
		a.unknown = true // until the candidate has it, no caller releases it
		err = x.got.Accept(ctx, grant, a.Clock.At(grant.Asked, x.missed))
	}
	if err != nil {
		a.Live.Drop(x.got.Lease())
	}
	return err
}

// IsAnswer reports whether err is an answer of the backend, if it is not the cause of a context: see
// backend.IsCause.
func IsAnswer(err error) bool {
	return isRefusal(err) || errors.Is(err, backend.ErrLost) || errors.Is(err, backend.ErrSessionLost)
}

// IsCutShort reports whether err, of a call with ctx, is no answer of the backend: ctx has ended.
func IsCutShort(ctx context.Context, err error) bool {
	return ctx.Err() != nil && err != nil && (backend.IsCause(ctx, err) || !IsAnswer(err))
}

// isRefusal reports whether err says why the lock was not granted, so that a retry is pointless.
func isRefusal(err error) bool {
	return errors.Is(err, backend.ErrHeld) || errors.Is(err, backend.ErrInvalid) || errors.Is(err, backend.ErrUnsupported) || errors.Is(err, backend.ErrQuarantine) ||
		IsRefused(err)
}

// isOver reports whether within has ended only because Patience has elapsed.
func isOver(ctx, within context.Context) bool {
	return errors.Is(causeOf(within), errWaitOver) && ctx.Err() == nil
}

// again reports whether to retry after err. It pauses first if a pause is due.
func (a *acquisition) again(within context.Context, err error, n int) bool {
	var away *backend.UnavailableError
	switch {
	case a.heldByOurs(err):
		return a.Pause(within, min(Backoff(n), 100*time.Millisecond))
	case IsRefused(err): // before ErrInvalid: what the store refuses may be a value, such as the credentials
		a.away = err
		a.unknown = a.unknown || MayHold(err)
		return false
	case errors.Is(err, backend.ErrClosed), errors.Is(err, backend.ErrHeld), errors.Is(err, backend.ErrInvalid), errors.Is(err, backend.ErrUnsupported):
		return false
	case errors.Is(err, backend.ErrSessionLost):
		if a.sess != nil && !IsCutShort(within, err) {
			a.sessionIsLost(a.sess)
		}
		return a.Pause(within, min(Backoff(n), 100*time.Millisecond))
	case errors.Is(err, backend.ErrLost):
		// Granted and lost before it was accepted, or abandoned: this ID cannot be used again. The backend may
		// have repeated its request by itself, and have it granted a second time.
		a.unknown = a.unknown || a.req.Fixed == ""
		a.Mu.Lock()
		a.abandon()
		a.Mu.Unlock()
		return a.req.Fixed == "" && a.Pause(within, min(Backoff(n), 100*time.Millisecond))
	case errors.Is(err, backend.ErrQuarantine):
		errors.As(err, &away)
		a.away = err
		a.unknown = a.unknown || away != nil && away.MayHold
		a.back(true)
		a.warnQuarantine(err)
		return a.req.Patience != 0 && a.sitOut(within, err)
	case within.Err() != nil:
		return false
	case errors.As(err, &away):
		a.away = err
		a.unknown = a.unknown || away.MayHold
		a.warnAway(err)
		pause := max(Backoff(n), min(away.RetryAfter, time.Second))
		if a.req.Patience < 0 && !a.answered.Load() {
			left := a.Timeout - time.Duration(a.Clock.Now()-a.began)
			if left <= 0 {
				return false // only a store that was there is waited for
			}
			pause = min(pause, left)
		}
		return a.Pause(within, pause)
	default:
		return IsUnavailable(err) && a.Pause(within, Backoff(n))
	}
}

// isHeld reports whether err says who holds the lock.
func isHeld(err error) bool {
	_, ok := errors.AsType[*backend.HeldError](err)
	return ok
}

// heldByOurs reports whether only earlier attempts of this acquisition hold the lock. For the
// caller it is then free.
func (a *acquisition) heldByOurs(err error) bool {
	held, ok := errors.AsType[*backend.HeldError](err)
	return ok && len(held.Holders) > 0 && held.Count <= len(held.Holders) && !slices.ContainsFunc(held.Holders, func(h backend.Holder) bool {
		return !slices.Contains(a.givenUp, h.Lease)
	})
}

// abandon releases the lease ID in the background. The next attempt has another ID. The channel is that
// of Settle. Mu is held.
func (a *acquisition) abandon() <-chan struct{} {
	var first <-chan struct{}
	if a.unknown && a.req.Fixed == "" {
		first = a.Settle(a.release(), a.sess, a.req.TTL)
		a.givenUp = append(a.givenUp, a.req.Lease)
	}
	a.unknown = false
	a.chooseLease()
	return first
}

// Withdrawal is how long a call that has failed waits until the store has answered that its place in the
// queue is gone: until then the place refuses the lock to others.
const Withdrawal = 250 * time.Millisecond

// withdraw abandons the lease, and waits for the answer for as long as Withdrawal says. In what is left of that time it reads
// who holds the lock, if that is asked. It does so after the release, which others wait for.
func (a *acquisition) withdraw(ctx context.Context, ask bool) *backend.HeldError {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Withdrawal)
	defer cancel()
	ctx, done := a.UntilClosed(ctx) // Close waits for the release
	defer done()
	a.Mu.Lock()
	first := a.abandon()
	a.Mu.Unlock()
	if first != nil {
		select {
		case <-first:
		case <-ctx.Done():
		}
	}
	if !ask || a.Clock.Now() < clock.Instant(a.lookAgain.Load()) {
		return nil
	}
	return a.inTheWay(ctx)
}

// inTheWay returns who holds the lock so that the request does not fit beside them, or nil if that is no other client or
// not known. A client that was refused to read asks no more for a minute: the refusal may be one of many in the audit of a server.
func (a *acquisition) inTheWay(ctx context.Context) *backend.HeldError {
	select {
	case a.looks <- struct{}{}: // many that wait for one lock have the same deadline
		defer a.looks.leave()
	case <-ctx.Done():
		return nil
	}
	info, err := a.Backend.Inspect(ctx, a.req.Name)
	if IsRefused(err) {
		a.lookAgain.Store(int64(a.Clock.Now()) + int64(time.Minute))
	}
	holders := slices.DeleteFunc(info.Holders, func(h backend.Holder) bool {
		return h.Lease != "" && (h.Lease == a.req.Lease || slices.Contains(a.givenUp, h.Lease))
	})
	var out []backend.Claim
	for _, h := range holders {
		out = append(out, backend.Claim{Mode: h.Mode, Permits: h.Permits})
	}
	if err != nil || a.req.Claim().Fits(out) {
		return nil
	}
	return backend.NewHeldError(a.req.Name, holders, 0, 0)
}

func (a *acquisition) release() backend.ReleaseRequest {
	return backend.ReleaseRequest{Name: a.req.Name, Lease: a.req.Lease, Session: a.req.AcquireRequest.Session, Abandon: true}
}

// last makes one more attempt, without waiting, when Patience has elapsed: its refusal says who holds
// the lock, or why no client does. If the lease was granted in the meantime, the caller gets it.
// The place in the queue is released.
func (a *acquisition) last(ctx context.Context) (*attempt, error) {
	short := within(ctx, min(a.Timeout, time.Second), context.DeadlineExceeded)
	defer short.finish()
	x, err := a.prepare(short)
	if err == nil {
		a.req.Wait = false
		if err = a.attempt(ctx, x); err == nil {
			return x, nil
		}
		a.unknown = a.unknown || MayHold(err)
		if a.req.Fixed == "" && a.Backend.Release(short, a.release()) == nil {
			a.unknown = false
		}
	}
	a.warnQuarantine(err)
	if !isRefusal(err) && !IsUnavailable(err) && ctx.Err() == nil {
		err = &backend.UnavailableError{
			Backend: a.caps.Name, Op: "acquire", MayHold: a.unknown,
			Err: fmt.Errorf("the holder of the lock is unknown: %v", err), //nolint:errorlint // the loss of a place is not the loss of the lock
		}
	}
	return nil, err
}

// sitOut waits until a quarantine ends, but at most a second, because another client may end it
// sooner. It reports false when within has ended.
func (a *acquisition) sitOut(within context.Context, err error) bool {
	const shortest, longest, jitter = time.Millisecond, time.Second, 10 * time.Millisecond
	left := longest
	if q, ok := errors.AsType[*backend.QuarantineError](err); ok {
		left = min(max(q.Left, shortest), longest)
	}
	return a.Pause(within, left+rand.N(jitter))
}

// warnQuarantine logs a quarantine once.
func (a *Agent) warnQuarantine(err error) {
	q, ok := errors.AsType[*backend.QuarantineError](err)
	if !ok {
		return
	}
	const slack = 2 * time.Second // the reported end is never exact
	a.Mu.Lock()
	known := q.Until.Before(a.warned)
	if !known {
		a.warned = q.Until.Add(slack)
	}
	a.Mu.Unlock()
	if !known {
		LogQuarantine(a.Logger, q)
	}
}

// LogQuarantine logs that a store grants nothing, why, and for how long.
func LogQuarantine(log *slog.Logger, q *backend.QuarantineError) {
	log.LogAttrs(context.Background(), slog.LevelWarn, "no lock is granted yet: the store is in quarantine, which ends by itself",
		slog.String("backend", q.Backend), slog.String("reason", q.Reason), slog.String("for", q.Left.Round(time.Millisecond).String()),
		slog.Time("until", q.Until))
}

// back records that the store answered, now or since a request failed: the next failure is logged again.
func (a *Agent) back(now bool) {
	if !a.answered.Load() {
		a.answered.Store(true)
	}
	if a.isAway.Load() && a.isAway.CompareAndSwap(true, false) && now {
		a.Logger.LogAttrs(a.background, slog.LevelInfo, "the store answers again", slog.String("backend", a.caps.Name))
	}
}

// warnAway logs that the store is unavailable, once until it answers again.
func (a *Agent) warnAway(err error) {
	if a.isAway.CompareAndSwap(false, true) {
		a.Logger.LogAttrs(a.background, slog.LevelWarn, "the store is unavailable; retrying",
			slog.String("backend", a.caps.Name), slog.String("error", err.Error()))
	}
}

// fail returns why the lock was not granted, and makes sure that it is not held.
func (a *acquisition) fail(ctx, within context.Context, err error) error {
	if hasEnded(a.away) {
		a.away = nil // the wait since then had another reason
	}
	timedOut := false // the deadline of ctx ended a wait for others. A caller that cancels does not ask who they are
	switch {
	case a.closing.Err() != nil:
		err = backend.ErrClosed
	case ctx.Err() != nil && isHeld(err) && !IsCutShort(ctx, err) && !a.heldByOurs(err):
		err = joinCause(ctx, err)
	case ctx.Err() != nil:
		err = joinCause(ctx, a.away)
		timedOut = a.req.Patience != 0 && !errors.Is(a.away, backend.ErrQuarantine) && errors.Is(ctx.Err(), context.DeadlineExceeded)
	case isOver(ctx, within) && !isRefusal(err) && !IsUnavailable(err):
		if err = a.away; err == nil {
			err = &backend.UnavailableError{Backend: a.caps.Name, Op: "acquire", MayHold: a.unknown, Err: context.DeadlineExceeded}
		}
	}
	switch {
	case a.unknown:
		a.Observer.Ambiguous(ctx, "acquire")
		if held := a.withdraw(ctx, timedOut); held != nil {
			err = joinCause(ctx, held) // an earlier failure of the store is not the reason
		}
	case len(a.givenUp) == 0:
		return err
	}
	// A refusal after a wait means that the lease has left the queue, or will.
	return &Error{MayHold: a.req.Fixed != "" || ctx.Err() != nil || !errors.Is(err, backend.ErrHeld), Err: err}
}

// Outcome returns what became of a failed acquisition, for metrics.
func Outcome(ctx context.Context, err error) string {
	switch {
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return "canceled"
	case errors.Is(err, backend.ErrHeld):
		return "held"
	case !IsRefused(err) && (errors.Is(err, backend.ErrInvalid) || errors.Is(err, backend.ErrUnsupported)):
		return "invalid"
	case ctx.Err() != nil:
		return "canceled"
	case errors.Is(err, backend.ErrUnavailable):
		return "unavailable"
	default:
		return "error"
	}
}
