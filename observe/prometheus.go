package observe

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-io/holdfast"
)

// Options configure NewPrometheus.
type Options struct {
	// Backend is the value of the label backend: "redis". Default: "unknown". Optional.
	Backend string
	// Version is reported by build_info. Default: the version of the main module of the running
	// program. Optional.
	Version string
	// OldestWaiter returns the age of the oldest waiter, 0 when there is none. It is called at every
	// scrape and must not block. Default: the metric does not exist. Optional.
	OldestWaiter func() time.Duration
	// Sessions returns the number of sessions on the backend. It is called at every scrape and must
	// not block. Default: the metric does not exist. Optional.
	Sessions func() int
}

// Metrics are the metrics of one client on one backend. All methods are safe for
// concurrent use.
type Metrics struct {
	acquires  *prometheus.CounterVec
	wait      *prometheus.HistogramVec
	hold      *prometheus.HistogramVec
	queue     prometheus.Gauge
	held      *prometheus.GaugeVec
	renewals  *prometheus.CounterVec
	margin    prometheus.Observer
	lost      *prometheus.CounterVec
	fenced    prometheus.Counter
	wakeLost  prometheus.Counter
	ambiguous *prometheus.CounterVec
	ops       *prometheus.HistogramVec
	failures  *prometheus.CounterVec
}

// The values of the labels, so that every series starts at zero.
func modes() []string { return []string{"exclusive", "shared"} }

func results() []holdfast.Result {
	return []holdfast.Result{
		holdfast.ResultAcquired, holdfast.ResultHeld, holdfast.ResultCanceled,
		holdfast.ResultUnavailable, holdfast.ResultInvalid, holdfast.ResultError,
	}
}

func causes() []holdfast.Cause {
	return []holdfast.Cause{
		holdfast.CauseBroken, holdfast.CauseExpired, holdfast.CauseSession, holdfast.CauseGone,
		holdfast.CauseDeadline, holdfast.CauseEnded, holdfast.CauseAtMost, holdfast.CauseClosed,
	}
}

// The outcomes of a renewal.
const (
	renewOK    = "ok"
	renewLost  = "lost"
	renewError = "error"
)

// NewPrometheus creates the metrics and registers them with reg.
//
// The error is that of the registration. Two clients on one backend must share one Metrics, or use
// registerers with a label of their own.
func NewPrometheus(reg prometheus.Registerer, o Options) (*Metrics, error) {
	f := newFactory(reg, o.Backend)
	short := shortTimes()
	long := prometheus.ExponentialBuckets(0.001, 4, 14) // 1 ms to 19 h
	m := &Metrics{
		acquires:  f.counters("acquire_total", "Attempts to acquire, by how they ended.", "mode", "result"),
		wait:      f.histograms("wait_seconds", "From the call to the grant.", short, "mode"),
		hold:      f.histograms("hold_seconds", "From the grant to the release or the loss.", long, "mode"),
		queue:     f.gauges("queue_depth", "Acquisitions in progress.").With(nil),
		held:      f.gauges("held", "Leases that are held.", "mode"),
		renewals:  f.counters("renew_total", "Renewals, by their result.", "result"),
		margin:    f.histograms("renew_margin_seconds", "How much of the lease was left when its renewal was acknowledged.", short).With(nil),
		lost:      f.counters("lost_total", "Losses reported to holders, by cause.", "cause"),
		fenced:    f.counters("fence_rejected_total", "Writes refused for a stale token.").With(nil),
		wakeLost:  f.counters("wake_lost_total", "Grants that were found by a timer because the push was lost.").With(nil),
		ambiguous: f.counters("ambiguous_total", "Operations of unknown outcome, settled in the background.", "op"),
		ops:       f.histograms("backend_op_seconds", "Calls of the backend; an acquire may wait in the queue.", short, "op"),
		failures:  f.counters("backend_errors_total", "Calls of the backend that failed.", "op", "kind"),
	}
	f.function("oldest_waiter_seconds", "Age of the oldest acquisition in progress.", o.OldestWaiter != nil,
		func() float64 { return o.OldestWaiter().Seconds() })
	f.function("sessions", "Sessions on the backend.", o.Sessions != nil, func() float64 { return float64(o.Sessions()) })
	f.gauges("build_info", "Always 1; the labels have the versions.", "version", "go").
		WithLabelValues(version(o.Version), runtime.Version()).Set(1)
	m.zeros()
	if f.err != nil {
		return nil, fmt.Errorf("register metrics: %w", f.err)
	}
	return m, nil
}

func version(given string) string {
	if given != "" {
		return given
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// zeros creates every possible series, so that its first event shows as an increase.
func (m *Metrics) zeros() {
	for _, mode := range modes() {
		for _, r := range results() {
			m.acquires.WithLabelValues(mode, string(r))
		}
		m.wait.WithLabelValues(mode)
		m.hold.WithLabelValues(mode)
		m.held.WithLabelValues(mode)
	}
	for _, r := range []string{renewOK, renewLost, renewError} {
		m.renewals.WithLabelValues(r)
	}
	for _, c := range causes() {
		m.lost.WithLabelValues(string(c))
	}
	for _, op := range []string{"acquire", "release"} {
		m.ambiguous.WithLabelValues(op)
	}
	for _, op := range ops() {
		m.ops.WithLabelValues(op)
		for _, kind := range []string{kindUnavailable, kindClosed, kindOther} {
			m.failures.WithLabelValues(op, kind)
		}
	}
}

// factory registers metrics and collects the errors.
type factory struct {
	reg prometheus.Registerer
	err error
}

func newFactory(reg prometheus.Registerer, name string) *factory {
	return &factory{reg: prometheus.WrapRegistererWith(prometheus.Labels{"backend": cmp.Or(name, "unknown")}, reg)}
}

func shortTimes() []float64 { return prometheus.ExponentialBuckets(0.0005, 2, 18) } // 0.5 ms to 65 s

const namespace = "holdfast"

func (f *factory) register(c prometheus.Collector) {
	if err := f.reg.Register(c); err != nil {
		f.err = errors.Join(f.err, err)
	}
}

func (f *factory) counters(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	f.register(v)
	return v
}

func (f *factory) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
	f.register(v)
	return v
}

func (f *factory) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels)
	f.register(v)
	return v
}

func (f *factory) function(name, help string, wanted bool, value func() float64) {
	if wanted {
		f.register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, value))
	}
}
