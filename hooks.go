package holdfast

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/clock"
)

// Hooks are called when something happens to the locks of a client: for metrics, traces and tests.
// Each is optional.
//
// They run one at a time, in the order in which things happened, in a goroutine of their own. No
// call and no renewal waits for them, so a hook may block, and may use the client. Only Close waits:
// a hook that closes its client waits for itself. At most 4,096 hooks wait for their turn; further
// ones are dropped, and Stats counts them.
//
// The context of a hook has the values of the context that was passed to the call it belongs to; for
// Lost that is the call that acquired the lock. It does not end with that call, but with Close.
type Hooks struct {
	// Acquired: a lock was granted.
	Acquired func(context.Context, AcquiredEvent)
	// Failed: an acquisition failed.
	Failed func(context.Context, FailedEvent)
	// Waiting: the number of acquisitions in progress changed by delta. A change that was dropped
	// is part of the next one.
	Waiting func(ctx context.Context, delta int)
	// Released: a lock was released by its holder.
	Released func(context.Context, ReleasedEvent)
	// Lost: a lock was lost.
	Lost func(context.Context, LostEvent)
	// AtRisk: a renewal failed; the leases are still held.
	AtRisk func(context.Context, AtRiskEvent)
	// Renewed: an attempt to renew has ended, successfully or not.
	Renewed func(context.Context, RenewedEvent)
	// Ambiguous: the outcome of an operation, "acquire" or "release", is unknown and is being
	// settled in the background.
	Ambiguous func(ctx context.Context, op string)
}

// JoinHooks returns hooks that call those of a and then those of b. Either may be nil.
func JoinHooks(a, b *Hooks) *Hooks {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return &Hooks{
		Acquired: both(a.Acquired, b.Acquired), Failed: both(a.Failed, b.Failed), Waiting: both(a.Waiting, b.Waiting),
		Released: both(a.Released, b.Released), Lost: both(a.Lost, b.Lost), AtRisk: both(a.AtRisk, b.AtRisk),
		Renewed: both(a.Renewed, b.Renewed), Ambiguous: both(a.Ambiguous, b.Ambiguous),
	}
}

func both[E any](a, b func(context.Context, E)) func(context.Context, E) {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	return func(ctx context.Context, e E) { a(ctx, e); b(ctx, e) }
}

// AcquiredEvent describes a grant.
type AcquiredEvent struct {
	Lock   Lease
	Token  fence.Token
	Shared bool
	// Waited is the time from the call to the grant.
	Waited time.Duration
	// InQueue: the lock was not free immediately.
	InQueue bool
	// ByTimer: the grant was found by a timer, because a notification was lost.
	ByTimer bool
}

// Result is the outcome of an acquisition.
type Result string

// The results.
const (
	ResultAcquired    Result = "acquired"
	ResultHeld        Result = "held"        // other clients hold it, also after Wait
	ResultCanceled    Result = "canceled"    // the caller's context ended
	ResultUnavailable Result = "unavailable" // the backend is unavailable
	ResultInvalid     Result = "invalid"     // the request is bad or not supported
	ResultError       Result = "error"       // anything else
)

// FailedEvent describes an acquisition that failed.
type FailedEvent struct {
	Name   string
	Shared bool
	Waited time.Duration
	Result Result
	Err    error
}

// ReleasedEvent describes a release. Err is set when its outcome is unknown.
type ReleasedEvent struct {
	Lock   Lease
	Token  fence.Token
	Shared bool
	Held   time.Duration
	Err    error
}

// LostEvent describes a loss.
type LostEvent struct {
	Lock   Lease
	Token  fence.Token
	Shared bool
	Held   time.Duration
	Cause  Cause
	Reason string
}

// AtRiskEvent describes a failed renewal.
type AtRiskEvent struct {
	Leases int           // how many are at risk
	Left   time.Duration // until they are lost
	Err    error
}

// RenewedEvent describes one request to renew.
type RenewedEvent struct {
	Leases int           // how many leases it renewed
	Margin time.Duration // the time that was left when it was acknowledged: the leading indicator of loss
	Took   time.Duration
	Err    error
}

// mostHooks is how many hooks may wait for their turn.
const mostHooks = 4096

// hookQueue calls the hooks one after the other. Its goroutine runs while there are some to call.
type hookQueue struct {
	Hooks
	life context.Context //nolint:containedctx // the lifetime of the hooks' contexts
	end  context.CancelFunc

	mu      sync.Mutex
	queue   []func()
	running chan struct{} // closed when the goroutine ends; nil when there is none
	dropped uint64
	owed    int // the sum of the dropped changes of Waiting
}

func (q *hookQueue) init(hooks *Hooks) {
	if hooks != nil {
		q.Hooks = *hooks
	}
	q.life, q.end = context.WithCancel(context.Background())
}

// timeForHooks reads the clock if there are hooks, which are all that needs this reading.
func (c *Client) timeForHooks() clock.Instant {
	if c.cfg.Hooks == nil {
		return 0
	}
	return c.clock.Now()
}

// hook has a hook called with an event of a call with the context ctx. It may be called with
// Client.mu held.
func hook[E any](ctx context.Context, q *hookQueue, f func(context.Context, E), event E) {
	if f != nil {
		q.add(func() { f(hookContext{Context: q.life, call: ctx}, event) })
	}
}

// add reports whether f will be called.
func (q *hookQueue) add(f func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) >= mostHooks {
		q.dropped++
		return false
	}
	q.queue = append(q.queue, f)
	if q.running == nil {
		q.running = make(chan struct{})
		go q.run()
	}
	return true
}

func (q *hookQueue) run() {
	for {
		q.mu.Lock()
		if len(q.queue) == 0 {
			close(q.running)
			q.running, q.queue = nil, nil
			q.mu.Unlock()
			return
		}
		f := q.queue[0]
		q.queue = q.queue[1:]
		q.mu.Unlock()
		f()
	}
}

// lost returns how many hooks were dropped.
func (q *hookQueue) lost() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dropped
}

// waiting has the hook Waiting called.
func (q *hookQueue) waiting(ctx context.Context, delta int) {
	if q.Waiting == nil {
		return
	}
	q.mu.Lock()
	delta += q.owed
	q.owed = 0
	q.mu.Unlock()
	if !q.add(func() { q.Waiting(hookContext{Context: q.life, call: ctx}, delta) }) {
		q.mu.Lock()
		q.owed += delta
		q.mu.Unlock()
	}
}

// finish waits until all hooks have run, or ctx ends, and then ends the contexts of the hooks. It
// returns the cause of ctx if a hook has not run.
func (q *hookQueue) finish(ctx context.Context) error {
	defer q.end()
	q.mu.Lock()
	running := q.running
	q.mu.Unlock()
	if running == nil {
		return nil
	}
	select {
	case <-running:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// hookContext has the values of the context of a call, and another end.
type hookContext struct {
	context.Context //nolint:containedctx // this is a context
	call            context.Context
}

func (x hookContext) Value(key any) any { return x.call.Value(key) }
