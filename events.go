package holdfast

import (
	"time"

	"github.com/holdfast-io/holdfast/fence"
)

// Events are hooks for metrics, logs and tests. Each is optional. A hook runs in the goroutine in
// which the event happened, with no lock of the client held. It may be called from several
// goroutines concurrently. It must not block, because renewals and deadlines may wait for it: it
// may call the methods of a Lock that send nothing, but must not wait for the backend, and must not
// close the client, which would wait for the hook.
type Events struct {
	// Acquired: a lock was granted.
	Acquired func(AcquiredEvent)
	// Failed: an acquisition failed.
	Failed func(FailedEvent)
	// Waiting: the number of acquisitions in progress changed by delta.
	Waiting func(delta int)
	// Released: a lock was released by its holder.
	Released func(ReleasedEvent)
	// Lost: a lock was lost.
	Lost func(LostEvent)
	// AtRisk: a renewal failed; the leases are still held.
	AtRisk func(AtRiskEvent)
	// Renewed: an attempt to renew has ended, successfully or not.
	Renewed func(RenewedEvent)
	// Ambiguous: the outcome of an operation is unknown and is being settled in
	// the background.
	Ambiguous func(op string)
}

// AcquiredEvent describes a grant.
type AcquiredEvent struct {
	Lock   Lease
	Token  fence.Token
	Shared bool
	// Waited is the time from the call to the grant.
	Waited time.Duration
	// InLine: the lock was not free immediately.
	InLine bool
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
