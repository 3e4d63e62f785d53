package observe

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast"
)

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
		Released:  func(_ context.Context, e holdfast.ReleasedEvent) { m.ended(e.Shared, e.Held) },
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
	m.ended(e.Shared, e.Held)
	m.lost.WithLabelValues(string(e.Cause)).Inc()
}

func (m *Metrics) renewed(_ context.Context, e holdfast.RenewedEvent) {
	switch {
	case e.Err == nil:
		m.renewals.WithLabelValues(renewOK).Add(float64(max(1, e.Leases)))
		m.margin.Observe(e.Margin.Seconds())
	case errors.Is(e.Err, holdfast.ErrLost):
		m.renewals.WithLabelValues(renewLost).Add(float64(max(1, e.Leases)))
	default:
		m.renewals.WithLabelValues(renewError).Add(float64(max(1, e.Leases)))
	}
}

// ended counts the end of one lease that was held for held.
func (m *Metrics) ended(shared bool, held time.Duration) {
	m.held.WithLabelValues(mode(shared)).Dec()
	m.hold.WithLabelValues(mode(shared)).Observe(held.Seconds())
}

// FenceRejected counts a write that was refused for its stale token.
func (m *Metrics) FenceRejected() { m.fenced.Inc() }
