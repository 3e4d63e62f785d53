package observe

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-io/holdfast"
)

// Server are the metrics of package server: those of a client, and what only a server counts. A program that holds locks
// itself has Metrics. All methods are safe for concurrent use.
type Server struct {
	*Metrics

	handoff prometheus.Observer
	breaks  prometheus.Counter
	auth    prometheus.Counter
	quota   *prometheus.CounterVec
	untold  *prometheus.CounterVec
}

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

// NewServer creates the metrics and registers them with reg. The error is that of the registration.
func NewServer(reg prometheus.Registerer, o Options) (*Server, error) {
	m, err := NewPrometheus(reg, o)
	if err != nil {
		return nil, err
	}
	f := newFactory(reg, o.Backend)
	s := &Server{
		Metrics: m,
		handoff: f.histograms("handoff_seconds", "From a release to the next grant of the lock, where the server sees both.", shortTimes()).With(nil),
		breaks:  f.counters("break_total", "Locks that operators broke.").With(nil),
		auth:    f.counters("auth_failed_total", "Requests refused by the guard of the server.").With(nil),
		quota:   f.counters("quota_rejected_total", "Requests refused by a limit of the server.", "quota"),
		untold:  f.counters("untold_total", "Grants of the server whose answer failed, by what became of the lease.", "fate"),
	}
	for _, q := range quotas() {
		s.quota.WithLabelValues(string(q))
	}
	for _, u := range untolds() {
		s.untold.WithLabelValues(string(u))
	}
	if f.err != nil {
		return nil, fmt.Errorf("register metrics: %w", f.err)
	}
	return s, nil
}

// Ended counts the end of one lease that was held for held.
func (s *Server) Ended(shared bool, held time.Duration) { s.ended(shared, held) }

// Again undoes the count of one held lease: the same grant was counted before.
func (s *Server) Again(shared bool) { s.held.WithLabelValues(mode(shared)).Dec() }

// Lost counts a loss that was reported to a holder.
func (s *Server) Lost(cause holdfast.Cause) { s.lost.WithLabelValues(string(cause)).Inc() }

// Renewed counts a renewal of one lease; margin is the time that was left.
func (s *Server) Renewed(margin time.Duration) {
	s.RenewedUnseen()
	s.margin.Observe(margin.Seconds())
}

// RenewedUnseen counts a renewal whose margin is unknown because another process granted the lease.
func (s *Server) RenewedUnseen() { s.renewals.WithLabelValues(renewOK).Inc() }

// RenewFailed counts a renewal of one lease that was not acknowledged. lost reports that the lease
// is gone.
func (s *Server) RenewFailed(lost bool) {
	result := renewError
	if lost {
		result = renewLost
	}
	s.renewals.WithLabelValues(result).Inc()
}

// HandedOver observes the time from a release to the next grant.
func (s *Server) HandedOver(d time.Duration) { s.handoff.Observe(d.Seconds()) }

// Broken counts a break by an operator.
func (s *Server) Broken() { s.breaks.Inc() }

// QuotaRejected counts a request that a limit refused.
func (s *Server) QuotaRejected(q Quota) { s.quota.WithLabelValues(string(q)).Inc() }

// Untold counts a grant of the server whose answer failed.
func (s *Server) Untold(fate Untold) { s.untold.WithLabelValues(string(fate)).Inc() }

// AuthFailed counts a request that the guard refused.
func (s *Server) AuthFailed() { s.auth.Inc() }
