package holdfast

import (
	"time"

	"github.com/holdfast-io/holdfast/fence"
)

// Events are hooks for metrics, logs and tests. Each is optional. They are called
// from the goroutine in which the thing happened, with no lock held; a hook may be
// called from many goroutines at once, and must not block: renewals and deadlines may
// wait for it. So it may ask a Lock what it knows, but must not wait for the backend,
// nor close the client, which would wait for the hook.
type Events struct {
	// Acquired: a lock was granted.
	Acquired func(AcquiredEvent)
	// Failed: an acquisition came to nothing.
	Failed func(FailedEvent)
	// Waiting: the number of acquisitions under way changed by delta.
	Waiting func(delta int)
	// Released: a lock was given back by its holder.
	Released func(ReleasedEvent)
	// Lost: a lock was lost.
	Lost func(LostEvent)
	// AtRisk: a renewal failed; the leases are held still.
	AtRisk func(AtRiskEvent)
	// Renewed: an attempt to renew came to its end, well or not.
	Renewed func(RenewedEvent)
	// Ambiguous: the outcome of an operation is unknown and is being settled in
	// the background.
	Ambiguous func(op string)
}

// AcquiredEvent tells of a grant.
type AcquiredEvent struct {
	Lock   Lease
	Token  fence.Token
	Shared bool
	// Waited from the call to the grant.
	Waited time.Duration
	// InLine: it was not free at once.
	InLine bool
	// ByTimer: the grant was found by a timer: a push was lost.
	ByTimer bool
}

// Result says how an acquisition ended.
type Result string

// The results.
const (
	ResultAcquired    Result = "acquired"
	ResultHeld        Result = "held"        // others have it, also after Wait
	ResultCanceled    Result = "canceled"    // the caller's context ended
	ResultUnavailable Result = "unavailable" // the backend is away
	ResultInvalid     Result = "invalid"     // the request is bad or not supported
	ResultError       Result = "error"       // anything else
)

// FailedEvent tells of an acquisition that came to nothing.
type FailedEvent struct {
	Name   string
	Shared bool
	Waited time.Duration
	Result Result
	Err    error
}

// ReleasedEvent tells of a release. Err is set when its outcome is not known.
type ReleasedEvent struct {
	Lock   Lease
	Token  fence.Token
	Shared bool
	Held   time.Duration
	Err    error
}

// LostEvent tells of a loss.
type LostEvent struct {
	Lock   Lease
	Token  fence.Token
	Shared bool
	Held   time.Duration
	Cause  Cause
	Reason string
}

// AtRiskEvent tells that a renewal failed.
type AtRiskEvent struct {
	Leases int           // how many are at risk
	Left   time.Duration // until they are lost
	Err    error
}

// RenewedEvent tells of one request to renew.
type RenewedEvent struct {
	Leases int           // how many it was for
	Margin time.Duration // what was left when it was acknowledged: the leading indicator of loss
	Took   time.Duration
	Err    error
}

func (e *Events) acquired(ev AcquiredEvent) {
	if e != nil && e.Acquired != nil {
		e.Acquired(ev)
	}
}

func (e *Events) failed(ev FailedEvent) {
	if e != nil && e.Failed != nil {
		e.Failed(ev)
	}
}

func (e *Events) waiting(delta int) {
	if e != nil && e.Waiting != nil {
		e.Waiting(delta)
	}
}

func (e *Events) released(ev ReleasedEvent) {
	if e != nil && e.Released != nil {
		e.Released(ev)
	}
}

func (e *Events) lost(ev LostEvent) {
	if e != nil && e.Lost != nil {
		e.Lost(ev)
	}
}

func (e *Events) atRisk(ev AtRiskEvent) {
	if e != nil && e.AtRisk != nil {
		e.AtRisk(ev)
	}
}

func (e *Events) renewed(ev RenewedEvent) {
	if e != nil && e.Renewed != nil {
		e.Renewed(ev)
	}
}

func (e *Events) ambiguous(op string) {
	if e != nil && e.Ambiguous != nil {
		e.Ambiguous(op)
	}
}
