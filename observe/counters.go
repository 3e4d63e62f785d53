package observe

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast"
)

// Quota is a limit of the server that can refuse a request.
type Quota string

// The quotas.
const (
	QuotaConnections    Quota = "connections"
	QuotaWaiters        Quota = "waiters"
	QuotaWaitersPerLock Quota = "waiters_per_lock"
	QuotaAcquires       Quota = "acquires" // concurrent
	QuotaReads          Quota = "reads"
	QuotaStreams        Quota = "streams"
	QuotaPrincipal      Quota = "principal" // what one principal may use
)

func quotas() []Quota {
	return []Quota{QuotaConnections, QuotaWaiters, QuotaWaitersPerLock, QuotaAcquires, QuotaReads, QuotaStreams, QuotaPrincipal}
}

// Untold is the fate of a grant of the server whose answer failed.
type Untold string

// The fates.
const (
	UntoldGivenBack Untold = "given_back" // nothing of the answer was sent
	UntoldLeft      Untold = "left"       // left to expire: the client may know of it
)

func untolds() []Untold { return []Untold{UntoldGivenBack, UntoldLeft} }

func mode(shared bool) string {
	if shared {
		return "shared"
	}
	return "exclusive"
}

// Hooks returns the hooks for holdfast.Config. They do not block.
func (m *Metrics) Hooks() *holdfast.Hooks {
	return &holdfast.Hooks{
		Acquired: m.acquired,
		Failed: func(_ context.Context, e holdfast.FailedEvent) {
			m.acquires.WithLabelValues(mode(e.Shared), string(e.Result)).Inc()
		},
		Waiting:   func(_ context.Context, delta int) { m.queue.Add(float64(delta)) },
		Released:  func(_ context.Context, e holdfast.ReleasedEvent) { m.Ended(e.Shared, e.Held) },
		Lost:      m.lostLock,
		Renewed:   m.renewed,
		Ambiguous: func(_ context.Context, op string) { m.ambiguous.WithLabelValues(op).Inc() },
	}
}

func (m *Metrics) acquired(_ context.Context, e holdfast.AcquiredEvent) {
	m.acquires.WithLabelValues(mode(e.Shared), string(holdfast.ResultAcquired)).Inc()
	m.wait.WithLabelValues(mode(e.Shared)).Observe(e.Waited.Seconds())
	m.held.WithLabelValues(mode(e.Shared)).Inc()
	if e.ByTimer {
		m.wakeLost.Inc()
	}
}

func (m *Metrics) lostLock(_ context.Context, e holdfast.LostEvent) {
	m.Ended(e.Shared, e.Held)
	m.Lost(e.Cause)
}

func (m *Metrics) renewed(_ context.Context, e holdfast.RenewedEvent) {
	switch {
	case e.Err == nil:
		m.Renewed(max(1, e.Leases), e.Margin)
	case errors.Is(e.Err, holdfast.ErrLost):
		m.renewals.WithLabelValues(renewLost).Add(float64(max(1, e.Leases)))
	default:
		m.renewals.WithLabelValues(renewError).Add(float64(max(1, e.Leases)))
	}
}

// Ended counts the end of one lease that was held for held.
func (m *Metrics) Ended(shared bool, held time.Duration) {
	m.held.WithLabelValues(mode(shared)).Dec()
	m.hold.WithLabelValues(mode(shared)).Observe(held.Seconds())
}

// Lost counts a loss that was reported to a holder.
func (m *Metrics) Lost(cause holdfast.Cause) { m.lost.WithLabelValues(string(cause)).Inc() }

// Renewed counts an acknowledged renewal of several leases; margin is the time that was left.
func (m *Metrics) Renewed(leases int, margin time.Duration) {
	m.renewals.WithLabelValues(renewOK).Add(float64(leases))
	m.margin.Observe(margin.Seconds())
}

// RenewFailed counts a renewal of one lease that was not acknowledged. lost reports that the lease
// is gone.
func (m *Metrics) RenewFailed(lost bool) {
	if lost {
		m.renewals.WithLabelValues(renewLost).Inc()
		return
	}
	m.renewals.WithLabelValues(renewError).Inc()
}

// RenewedUnseen counts a renewal whose margin is unknown because another process granted the lease.
func (m *Metrics) RenewedUnseen() { m.renewals.WithLabelValues(renewOK).Inc() }

// HandedOver observes the time from a release to the next grant.
func (m *Metrics) HandedOver(d time.Duration) { m.handoff.Observe(d.Seconds()) }

// Broken counts a break by an operator.
func (m *Metrics) Broken() { m.breaks.Inc() }

// FenceRejected counts a write that was refused for its stale token.
func (m *Metrics) FenceRejected() { m.fenced.Inc() }

// QuotaRejected counts a request that a limit refused.
func (m *Metrics) QuotaRejected(q Quota) { m.quota.WithLabelValues(string(q)).Inc() }

// Untold counts a grant of the server whose answer failed.
func (m *Metrics) Untold(fate Untold) { m.untold.WithLabelValues(string(fate)).Inc() }

// AuthFailed counts a request that the guard refused.
func (m *Metrics) AuthFailed() { m.auth.Inc() }

// Again undoes the count of one held lease: the same grant was counted before.
func (m *Metrics) Again(shared bool) { m.held.WithLabelValues(mode(shared)).Dec() }
