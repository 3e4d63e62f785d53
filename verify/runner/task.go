package runner

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/verify/history"
)

// task acquires one lock after the other.
type task struct {
	*worker
	r *rand.Rand
}

// heldLock is a lock that a task holds, or held.
type heldLock struct {
	t     *task
	lock  *holdfast.Lock
	acq   string
	slot  slot
	alone bool  // exclusive
	until int64 // when the lease ends by itself; 0 for one that is renewed
	once  sync.Once
}

// chance is true in k of 100 cases.
func (t *task) chance(k int) bool { return t.r.IntN(100) < k }

// upTo is a random part of d.
func (t *task) upTo(d time.Duration) time.Duration { return time.Duration(t.r.Int64N(int64(d) + 1)) }

func (t *task) repeat(ctx context.Context) {
	if t.Jepsen {
		t.playJepsen(ctx)
		return
	}
	for retry.Pause(ctx, t.Pause/2+t.upTo(t.Pause)) {
		if g := t.take(ctx); g != nil {
			g.use(ctx)
			g.end()
		}
	}
}

// playJepsen reads under the lock, sleeps, and writes back without checking the lock.
func (t *task) playJepsen(ctx context.Context) {
	for retry.Pause(ctx, t.Pause/2+t.upTo(t.Pause)) {
		call := history.Event{Kind: history.KindCall, Verb: history.VerbAcquire, Lock: t.name(0)}
		if g := t.acquire(ctx, slots()[0], call, nil); g != nil {
			g.updateBlind(ctx, t.upTo(t.TTL))
			g.end()
		}
	}
}

// take acquires a lock in one of many ways.
func (t *task) take(ctx context.Context) *heldLock {
	n := t.r.IntN(len(slots()))
	s := slots()[n]
	call := history.Event{Kind: history.KindCall, Verb: history.VerbAcquire, Lock: t.name(n)}
	opts := t.mode(s, &call)
	if t.caps.Timed && t.chance(10) {
		call.TTL = int64(t.TTL)
		opts = append(opts, holdfast.NoRenew(), holdfast.TTL(t.TTL))
	}
	patience := t.Patience
	switch k := t.r.IntN(100); {
	case k < 25:
		call.Verb = history.VerbTry
	case k < 45:
		patience = t.upTo(t.TTL / 10) // gives up
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return t.acquire(ctx, s, call, opts)
}

// mode chooses how to share the lock.
func (t *task) mode(s slot, call *history.Event) []holdfast.Option {
	var opts []holdfast.Option
	switch {
	case s.limit > 0 && t.caps.Permits:
		call.Shared, call.Limit, call.Permits = true, s.limit, 1+t.r.IntN(s.limit-1)
		opts = append(opts, holdfast.Shared(), holdfast.Limit(s.limit), holdfast.Permits(call.Permits))
	case s.shared && s.limit == 0 && t.caps.Shared && t.chance(60):
		call.Shared = true
		opts = append(opts, holdfast.Shared())
	}
	return opts
}

func (t *task) acquire(ctx context.Context, s slot, call history.Event, opts []holdfast.Option) *heldLock {
	call.Op = t.ops.Add(1)
	call.Acq = t.Worker + "-" + strconv.FormatInt(call.Op, 10)
	t.tell(call)
	do := t.locks.Acquire
	if call.Verb == history.VerbTry {
		do = t.locks.TryAcquire
		defer t.unhindered(call.Op)()
	}
	lock, err := do(ctx, call.Lock, append(opts, holdfast.Note(call.Acq))...) // for people who inspect the lock
	ret := history.Event{Kind: history.KindReturn, Op: call.Op}
	if err != nil {
		ret.Outcome, ret.Text = outcome(err), err.Error()
		t.tell(ret)
		return nil
	}
	g := &heldLock{t: t, lock: lock, acq: call.Acq, slot: s, alone: !call.Shared}
	ret.Outcome, ret.Token, ret.Deadline = history.OK, uint64(lock.Token()), clockTime(lock.Deadline())
	if call.TTL > 0 {
		g.until = ret.Deadline
	}
	t.tell(ret)
	context.AfterFunc(lock.Context(), g.gone)
	return g
}

// outcome translates an error.
func outcome(err error) history.Outcome {
	op, ok := errors.AsType[*holdfast.OpError](err)
	mayHold := ok && op.MayHold
	switch {
	case err == nil:
		return history.OK
	case errors.Is(err, holdfast.ErrHeld) && !mayHold: // else the context ended the wait
		return history.Held
	case errors.Is(err, holdfast.ErrLost):
		return history.Lost
	case errors.Is(err, holdfast.ErrRefused): // also where it is ErrInvalid, as for a wrong token
		return history.Unknown
	case errors.Is(err, holdfast.ErrInvalid), errors.Is(err, holdfast.ErrUnsupported):
		return history.Refused
	default:
		return history.Unknown
	}
}

// gone records a loss, once.
func (g *heldLock) gone() {
	at := now()
	g.once.Do(func() {
		lost, ok := errors.AsType[*holdfast.LostError](g.lock.Err())
		if !ok {
			return // released
		}
		told := false
		switch lost.Cause {
		case holdfast.CauseBroken, holdfast.CauseExpired, holdfast.CauseSession, holdfast.CauseGone:
			told = true
		case holdfast.CauseDeadline, holdfast.CauseEnded, holdfast.CauseAtMost, holdfast.CauseClosed:
		}
		deadline := clockTime(g.lock.Deadline())
		g.t.record(history.Event{Kind: history.KindLost, At: at, Worker: g.t.Worker, Acq: g.acq, Deadline: deadline, Text: string(lost.Cause), Told: told})
	})
}

// checkHeld checks whether the lock is still held, and records it.
func (g *heldLock) checkHeld() bool {
	at := now()
	if g.lock.Err() != nil {
		return false
	}
	g.t.record(history.Event{Kind: history.KindHeld, At: at, Worker: g.t.Worker, Acq: g.acq, Deadline: clockTime(g.lock.Deadline())})
	return true
}

// use uses the lock for a while.
func (g *heldLock) use(ctx context.Context) {
	t := g.t
	d := t.upTo(5 * time.Millisecond)
	switch k := t.r.IntN(100); {
	case k < 10:
		d = t.upTo(t.TTL / 5)
	case k < 12:
		d = t.upTo(t.TTL * 3 / 2)
	}
	if g.until > 0 && t.chance(25) {
		d = time.Duration(g.until-now()) + time.Second // to its end
	}
	if t.chance(10) {
		g.reenter()
	}
	if t.chance(10) {
		g.renew(ctx)
	}
	if !g.alone || g.slot.shared {
		g.hold(ctx, d)
		return
	}
	g.update(ctx, d)
}

// lookEvery is how often a holder that is to keep its lock checks it.
const lookEvery = 20 * time.Millisecond

// left returns for how long to keep a lock that was to be kept until end.
func (t *task) left(end int64) time.Duration { return time.Duration(max(end, t.keep.Load()) - now()) }

// hold keeps the lock and checks it now and then. It reports whether the lock is still held.
func (g *heldLock) hold(ctx context.Context, d time.Duration) bool {
	for end := now() + int64(d); ; {
		if !g.checkHeld() {
			return false
		}
		left := g.t.left(end)
		if left <= 0 {
			return true
		}
		step, cancel := context.WithTimeout(ctx, min(left, lookEvery))
		select {
		case <-step.Done():
		case <-g.lock.Context().Done():
		}
		cancel()
		if ctx.Err() != nil {
			return g.checkHeld()
		}
	}
}

// update reads both registers, keeps the lock for a while, and writes them. Half of the updates
// check the lock before they write; the others write like programs that trust their lock.
func (g *heldLock) update(ctx context.Context, d time.Duration) {
	if !g.t.chance(50) {
		g.updateBlind(ctx, d)
		return
	}
	bases := g.read()
	if g.hold(ctx, d) {
		g.write(bases)
	}
}

func (g *heldLock) updateBlind(ctx context.Context, d time.Duration) {
	bases := g.read()
	for end := now() + int64(d); ; {
		left := g.t.left(end)
		if left <= 0 {
			g.write(bases)
			return
		}
		if !retry.Pause(ctx, min(left, lookEvery)) {
			return
		}
	}
}

// read returns the values of the registers; a register that refuses is left out.
func (g *heldLock) read() map[string]string {
	bases := make(map[string]string)
	for _, r := range []string{history.Bare, history.Guarded} {
		if o, ok := g.resource(history.Event{Kind: history.KindRead, Register: r}); ok && o.Outcome == history.OK {
			bases[r] = o.Value
		}
	}
	return bases
}

func (g *heldLock) write(bases map[string]string) {
	for _, r := range []string{history.Bare, history.Guarded} {
		if base, ok := bases[r]; ok {
			g.resource(history.Event{Kind: history.KindWrite, Register: r, Base: base, Value: g.acq})
		}
	}
}

func (g *heldLock) resource(e history.Event) (order, bool) {
	e.Lock, e.Acq, e.Token = g.lock.Name(), g.acq, uint64(g.lock.Token())
	return g.t.resource(e)
}

// call records a call and its return. f returns the error, and the deadline if there is a new
// one.
func (g *heldLock) call(verb history.Verb, f func() (history.Event, error)) {
	t := g.t
	op := t.ops.Add(1)
	t.tell(history.Event{Kind: history.KindCall, Op: op, Verb: verb, Lock: g.lock.Name(), Acq: g.acq})
	defer t.unhindered(op)()
	ret, err := f()
	ret.Kind, ret.Op, ret.Outcome = history.KindReturn, op, outcome(err)
	if err != nil {
		ret.Text = err.Error()
		if lost, ok := errors.AsType[*holdfast.LostError](err); ok {
			ret.Told = lost.Cause == holdfast.CauseGone
		}
	}
	t.tell(ret)
}

// reenter acquires the lock again, and releases that.
func (g *heldLock) reenter() {
	var again *holdfast.Lock
	g.call(history.VerbReenter, func() (history.Event, error) {
		var err error
		opts := []holdfast.Option{holdfast.Reentrant()}
		if !g.alone {
			opts = append(opts, holdfast.Shared())
			if g.slot.limit > 0 && g.t.caps.Permits {
				opts = append(opts, holdfast.Limit(g.slot.limit))
			}
		}
		if again, err = g.t.locks.Acquire(g.lock.Context(), g.lock.Name(), opts...); err != nil {
			return history.Event{}, err
		}
		return history.Event{Token: uint64(again.Token())}, nil
	})
	if again != nil {
		g.call(history.VerbLeave, func() (history.Event, error) {
			return history.Event{}, again.Release(context.WithoutCancel(g.lock.Context()))
		})
	}
}

func (g *heldLock) renew(ctx context.Context) {
	g.call(history.VerbRenew, func() (history.Event, error) {
		ctx, cancel := context.WithTimeout(ctx, g.t.TTL)
		defer cancel()
		if err := g.lock.Extend(ctx, g.t.TTL); err != nil {
			return history.Event{}, err
		}
		return history.Event{Deadline: clockTime(g.lock.Deadline())}, nil
	})
}

// end releases the lock, in one of several ways. It also uses a lost lease past the client,
// which the backend must refuse.
func (g *heldLock) end() {
	t := g.t
	session := t.past.forget(g.lock.Lease().ID)
	if g.lock.Err() != nil {
		g.gone()
		if t.chance(50) {
			g.stale(session)
		}
		return
	}
	limit := t.TTL
	if t.chance(5) {
		limit = t.upTo(2 * time.Millisecond) // gives up on the release
	}
	g.release(limit)
}

// release releases the lock, and reports whether that is certain.
func (g *heldLock) release(limit time.Duration) bool {
	var err error
	g.call(history.VerbRelease, func() (history.Event, error) {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		err = g.lock.Release(ctx)
		return history.Event{}, err
	})
	return err == nil
}

// stale does what a client never does: it renews and releases a lease that has ended.
func (g *heldLock) stale(session backend.SessionID) {
	t := g.t
	ctx, cancel := context.WithTimeout(context.Background(), t.TTL)
	defer cancel()
	retry.Pause(ctx, t.upTo(t.TTL/4))
	lease := g.lock.Lease()
	if t.caps.Timed && g.until > 0 {
		g.call(history.VerbStaleRenew, func() (history.Event, error) {
			res, err := t.past.Renew(ctx, backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: lease.Name, Lease: lease.ID, TTL: t.TTL}}})
			if err == nil && len(res.Leases) == 1 {
				err = res.Leases[0].Err
			}
			return history.Event{}, err
		})
	}
	g.staleRelease(session)
}

// staleRelease releases a lease that has ended, past the client.
func (g *heldLock) staleRelease(session backend.SessionID) {
	lease := g.lock.Lease()
	g.call(history.VerbStaleRelease, func() (history.Event, error) {
		ctx, cancel := context.WithTimeout(context.Background(), g.t.TTL)
		defer cancel()
		return history.Event{}, g.t.past.Release(ctx, backend.ReleaseRequest{Name: lease.Name, Lease: lease.ID, Session: session})
	})
}
