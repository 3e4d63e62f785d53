package observe_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/observe"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patience bounds the wait for something that has to happen soon, on a busy machine.
const patience = time.Minute

func fresh(t *testing.T) (*observe.Server, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	m, err := observe.NewServer(reg, observe.Options{
		Backend: "test", Version: "1.2.3",
		OldestWaiter: func() time.Duration { return 1500 * time.Millisecond },
		Sessions:     func() int { return 3 },
	})
	if err != nil {
		t.Fatal(err)
	}
	return m, reg
}

// gather returns every sample by its series: counters and gauges by their value, histograms by
// their _count and _sum.
func gather(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetName() != "backend" || l.GetValue() != "test" {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
			}
			slices.Sort(labels)
			at := "{" + strings.Join(labels, ",") + "}"
			if h := m.GetHistogram(); h != nil {
				out[f.GetName()+"_count"+at], out[f.GetName()+"_sum"+at] = float64(h.GetSampleCount()), h.GetSampleSum()
				continue
			}
			out[f.GetName()+at] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}

// expect compares the changes since the last reading.
func expect(t *testing.T, reg *prometheus.Registry, before, want map[string]float64) {
	t.Helper()
	after := gather(t, reg)
	for series, v := range after {
		old, known := before[series]
		if !known {
			t.Errorf("%s was not there with its zero from the start", series)
		}
		if change := v - old; change != want[series] {
			t.Errorf("%s changed by %v, want %v", series, change, want[series])
		}
	}
	for series := range want {
		if _, ok := after[series]; !ok {
			t.Errorf("there is no %s", series)
		}
	}
}

// Each event is one metric, and no other moves.
func TestEvents(t *testing.T) {
	t.Parallel()
	lock := holdfast.Lease{Name: "a-lock", ID: "0123456789abcdef"}
	away := &backend.UnavailableError{Backend: "test", Op: "renew", Err: errors.New("gone")}
	for name, c := range map[string]struct {
		do   func(*observe.Server)
		want map[string]float64
	}{
		"acquired": {
			func(m *observe.Server) {
				m.Hooks().Acquired(t.Context(), holdfast.AcquiredEvent{Lock: lock, Waited: 2 * time.Second, InQueue: true})
			},
			map[string]float64{
				"holdfast_acquire_total{mode=exclusive,result=acquired}": 1, "holdfast_held{mode=exclusive}": 1,
				"holdfast_wait_seconds_count{mode=exclusive}": 1, "holdfast_wait_seconds_sum{mode=exclusive}": 2,
			},
		},
		"by timer": {
			func(m *observe.Server) {
				m.Hooks().Acquired(t.Context(), holdfast.AcquiredEvent{Lock: lock, Shared: true, ByTimer: true})
			},
			map[string]float64{
				"holdfast_acquire_total{mode=shared,result=acquired}": 1, "holdfast_held{mode=shared}": 1,
				"holdfast_wait_seconds_count{mode=shared}": 1, "holdfast_wake_lost_total{}": 1,
			},
		},
		"released": {
			func(m *observe.Server) {
				m.Hooks().Released(t.Context(), holdfast.ReleasedEvent{Lock: lock, Held: 3 * time.Second})
			},
			map[string]float64{
				"holdfast_held{mode=exclusive}": -1, "holdfast_hold_seconds_count{mode=exclusive}": 1, "holdfast_hold_seconds_sum{mode=exclusive}": 3,
			},
		},
		"lost": {
			func(m *observe.Server) {
				m.Hooks().Lost(t.Context(), holdfast.LostEvent{Lock: lock, Shared: true, Held: time.Second, Cause: holdfast.CauseBroken, Reason: "by a person"})
			},
			map[string]float64{
				"holdfast_held{mode=shared}": -1, "holdfast_hold_seconds_count{mode=shared}": 1, "holdfast_hold_seconds_sum{mode=shared}": 1,
				"holdfast_lost_total{cause=broken}": 1,
			},
		},
		"renewed": {
			func(m *observe.Server) {
				m.Hooks().Renewed(t.Context(), holdfast.RenewedEvent{Leases: 5, Margin: 20 * time.Second})
			},
			map[string]float64{
				"holdfast_renew_total{result=ok}": 5, "holdfast_renew_margin_seconds_count{}": 1, "holdfast_renew_margin_seconds_sum{}": 20,
			},
		},
		"renewal lost": {func(m *observe.Server) {
			m.Hooks().Renewed(t.Context(), holdfast.RenewedEvent{Leases: 2, Err: holdfast.ErrLost})
		}, map[string]float64{"holdfast_renew_total{result=lost}": 2}},
		"renewal failed": {func(m *observe.Server) { m.Hooks().Renewed(t.Context(), holdfast.RenewedEvent{Err: away}) }, map[string]float64{"holdfast_renew_total{result=error}": 1}},
		"one failed":     {func(m *observe.Server) { m.RenewFailed(false) }, map[string]float64{"holdfast_renew_total{result=error}": 1}},
		"one lost":       {func(m *observe.Server) { m.RenewFailed(true) }, map[string]float64{"holdfast_renew_total{result=lost}": 1}},
		"unseen":         {func(m *observe.Server) { m.RenewedUnseen() }, map[string]float64{"holdfast_renew_total{result=ok}": 1}},
		"waiting": {func(m *observe.Server) {
			m.Hooks().Waiting(t.Context(), 2)
			m.Hooks().Waiting(t.Context(), -1)
		}, map[string]float64{"holdfast_queue_depth{}": 1}},
		"ambiguous": {func(m *observe.Server) { m.Hooks().Ambiguous(t.Context(), "release") }, map[string]float64{"holdfast_ambiguous_total{op=release}": 1}},
		"hand-over": {func(m *observe.Server) { m.HandedOver(2 * time.Second) }, map[string]float64{"holdfast_handoff_seconds_count{}": 1, "holdfast_handoff_seconds_sum{}": 2}},
		"broken":    {func(m *observe.Server) { m.Broken() }, map[string]float64{"holdfast_break_total{}": 1}},
		"fence":     {func(m *observe.Server) { m.FenceRejected() }, map[string]float64{"holdfast_fence_rejected_total{}": 1}},
		"quota":     {func(m *observe.Server) { m.QuotaRejected(observe.QuotaWaiters) }, map[string]float64{"holdfast_quota_rejected_total{quota=waiters}": 1}},
		"refused":   {func(m *observe.Server) { m.AuthFailed() }, map[string]float64{"holdfast_auth_failed_total{}": 1}},
		"untold":    {func(m *observe.Server) { m.Untold(observe.UntoldLeft) }, map[string]float64{"holdfast_untold_total{fate=left}": 1}},
		"again":     {func(m *observe.Server) { m.Again(false) }, map[string]float64{"holdfast_held{mode=exclusive}": -1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, reg := fresh(t)
			before := gather(t, reg)
			c.do(m)
			expect(t, reg, before, c.want)
		})
	}
	for _, cause := range []holdfast.Cause{
		holdfast.CauseBroken, holdfast.CauseExpired, holdfast.CauseSession, holdfast.CauseGone, holdfast.CauseDeadline,
		holdfast.CauseEnded, holdfast.CauseAtMost, holdfast.CauseClosed,
	} {
		m, reg := fresh(t)
		before := gather(t, reg)
		m.Lost(cause)
		expect(t, reg, before, map[string]float64{"holdfast_lost_total{cause=" + string(cause) + "}": 1})
	}
	for _, result := range []holdfast.Result{
		holdfast.ResultHeld, holdfast.ResultCanceled, holdfast.ResultUnavailable, holdfast.ResultInvalid, holdfast.ResultError,
	} {
		m, reg := fresh(t)
		before := gather(t, reg)
		m.Hooks().Failed(t.Context(), holdfast.FailedEvent{Name: "a-lock", Shared: true, Result: result})
		expect(t, reg, before, map[string]float64{"holdfast_acquire_total{mode=shared,result=" + string(result) + "}": 1})
	}
}

// A program that holds locks does not publish what only a server counts.
func TestWhatOnlyAServerCounts(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	if _, err := observe.NewPrometheus(reg, observe.Options{}); err != nil {
		t.Fatal(err)
	}
	_, both := fresh(t)
	client, server := gather(t, reg), gather(t, both)
	for _, family := range []string{"auth_failed_total", "break_total", "handoff_seconds", "quota_rejected_total", "untold_total"} {
		has := func(series map[string]float64) bool {
			return slices.ContainsFunc(slices.Collect(maps.Keys(series)), func(s string) bool { return strings.HasPrefix(s, "holdfast_"+family) })
		}
		if has(client) || !has(server) {
			t.Errorf("%s: of a client %v, of a server %v", family, has(client), has(server))
		}
	}
}

// The values that are read at every scrape.
func TestFunctions(t *testing.T) {
	t.Parallel()
	_, reg := fresh(t)
	got := gather(t, reg)
	for series, want := range map[string]float64{"holdfast_oldest_waiter_seconds{}": 1.5, "holdfast_sessions{}": 3} {
		if got[series] != want {
			t.Errorf("%s is %v, want %v", series, got[series], want)
		}
	}
	bare := prometheus.NewRegistry()
	if _, err := observe.NewPrometheus(bare, observe.Options{}); err != nil {
		t.Fatal(err)
	}
	without := gather(t, bare)
	if _, ok := without["holdfast_sessions{backend=unknown}"]; ok {
		t.Error("a metric of sessions that cannot be counted")
	}
	if _, ok := without["holdfast_held{backend=unknown,mode=shared}"]; !ok {
		t.Error("no backend given is not told as unknown")
	}
	if !slices.ContainsFunc(slices.Collect(keys(got)), func(s string) bool {
		return strings.HasPrefix(s, "holdfast_build_info{go=go1") && strings.HasSuffix(s, "version=1.2.3}")
	}) {
		t.Error("no build_info")
	}
}

func keys(m map[string]float64) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// answering returns the same error from every call.
type answering struct {
	backend.Backend
	err error
}

func (b answering) OpenSession(context.Context, backend.SessionRequest) error { return b.err }
func (b answering) EndSession(context.Context, backend.SessionID) error       { return b.err }
func (b answering) Release(context.Context, backend.ReleaseRequest) error     { return b.err }
func (b answering) Acquire(context.Context, backend.AcquireRequest) (backend.Grant, error) {
	return backend.Grant{}, b.err
}

func (b answering) Renew(context.Context, backend.RenewRequest) (backend.RenewResult, error) {
	return backend.RenewResult{}, b.err
}

func (b answering) Inspect(context.Context, string) (backend.LockInfo, error) {
	return backend.LockInfo{}, b.err
}

func (b answering) List(context.Context, backend.ListRequest) (backend.ListPage, error) {
	return backend.ListPage{}, b.err
}

func (b answering) Break(context.Context, backend.BreakRequest) (backend.BreakResult, error) {
	return backend.BreakResult{}, b.err
}

// Every call of a backend is timed and passed on; only an error that is not an answer counts as a
// failure.
func TestBackendCalls(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		err  error
		kind string
		ctx  context.Context //nolint:containedctx // that of the calls
	}{
		{nil, "", t.Context()},
		{backend.ErrHeld, "", t.Context()},
		{fmt.Errorf("x: %w", backend.ErrLost), "", t.Context()},
		{backend.ErrSessionLost, "", t.Context()},
		{&backend.InvalidError{}, "", t.Context()},
		{backend.ErrUnsupported, "", t.Context()},
		{context.Canceled, "", ended},
		{&backend.UnavailableError{Err: errors.New("x")}, "unavailable", t.Context()},
		{&backend.UnavailableError{Err: errors.New("x")}, "unavailable", ended},
		{backend.ErrClosed, "closed", t.Context()},
		{errors.New("what is this"), "other", t.Context()},
	} {
		m, reg := fresh(t)
		before := gather(t, reg)
		b := m.Backend(answering{err: c.err})
		_, err := b.Acquire(c.ctx, backend.AcquireRequest{})
		errs := []error{err, b.OpenSession(c.ctx, backend.SessionRequest{}), b.EndSession(c.ctx, ""), b.Release(c.ctx, backend.ReleaseRequest{})}
		_, err = b.Renew(c.ctx, backend.RenewRequest{})
		errs = append(errs, err)
		_, err = b.Inspect(c.ctx, "")
		errs = append(errs, err)
		_, err = b.List(c.ctx, backend.ListRequest{})
		errs = append(errs, err)
		_, err = b.Break(c.ctx, backend.BreakRequest{})
		errs = append(errs, err)
		for i, err := range errs {
			if !errors.Is(err, c.err) || c.err == nil && err != nil {
				t.Errorf("call %d gave %v, want %v", i, err, c.err)
			}
		}
		after := gather(t, reg)
		for _, op := range []string{"open_session", "end_session", "acquire", "renew", "release", "inspect", "list", "break"} {
			if n := after["holdfast_backend_op_seconds_count{op="+op+"}"]; n != 1 {
				t.Errorf("%v: %s counted %v times", c.err, op, n)
			}
			for _, kind := range []string{"unavailable", "closed", "other"} {
				series := "holdfast_backend_errors_total{kind=" + kind + ",op=" + op + "}"
				old, known := before[series]
				if !known {
					t.Errorf("%s was not there from the start", series)
				}
				if n := after[series] - old; (n == 1) != (kind == c.kind) {
					t.Errorf("%v: %s rose by %v", c.err, series, n)
				}
			}
		}
	}
}

// A whole life with a real client: every event is reported, and the lock's name, its owner and its
// note are in no label.
func TestClient(t *testing.T) {
	t.Parallel()
	m, reg := fresh(t)
	before := gather(t, reg)
	b := memlock.New()
	defer b.Close()
	c, err := holdfast.New(m.Backend(b), holdfast.Config{Hooks: m.Hooks(), Owner: "an-owner", TTL: 15 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(t.Context()))
	lock, err := c.Acquire(t.Context(), "a-lock", holdfast.Note("a-note"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.TryAcquire(t.Context(), "a-lock"); !errors.Is(err, holdfast.ErrHeld) {
		t.Fatal(err)
	}
	select {
	case <-lock.Renewed():
	case <-time.After(patience):
		t.Fatal("not renewed")
	}
	if _, err := c.Break(t.Context(), "a-lock", "a-reason"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-lock.Context().Done():
	case <-time.After(patience):
		t.Fatal("not lost")
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := gather(t, reg)
	for series, want := range map[string]float64{
		"holdfast_acquire_total{mode=exclusive,result=acquired}": 1, "holdfast_acquire_total{mode=exclusive,result=held}": 1,
		"holdfast_wait_seconds_count{mode=exclusive}": 1, "holdfast_hold_seconds_count{mode=exclusive}": 1,
		"holdfast_held{mode=exclusive}": 0, "holdfast_queue_depth{}": 0, "holdfast_lost_total{cause=broken}": 1,
	} {
		if got := after[series] - before[series]; got != want {
			t.Errorf("%s rose by %v, want %v", series, got, want)
		}
	}
	if n := after["holdfast_renew_total{result=ok}"]; n < 1 || n != after["holdfast_renew_margin_seconds_count{}"] {
		t.Errorf("%v renewals, %v margins", n, after["holdfast_renew_margin_seconds_count{}"])
	}
	for series := range after {
		if _, known := before[series]; !known {
			t.Errorf("%s was not there from the start", series)
		}
		for _, secret := range []string{"a-lock", "an-owner", "a-note", "a-reason"} {
			if strings.Contains(series, secret) {
				t.Errorf("%s has %s in it", series, secret)
			}
		}
	}
}

func TestRegisteredTwice(t *testing.T) {
	t.Parallel()
	_, reg := fresh(t)
	if _, err := observe.NewPrometheus(reg, observe.Options{Backend: "test"}); err == nil {
		t.Error("the second registration is no error")
	}
	if _, err := observe.NewPrometheus(reg, observe.Options{Backend: "other"}); err != nil {
		t.Errorf("two backends on one registry: %v", err)
	}
}

// Names and help follow Prometheus' conventions, and the documentation lists them all.
func TestNames(t *testing.T) {
	t.Parallel()
	_, reg := fresh(t)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		line := regexp.MustCompile(`(?m)^//\t` + f.GetName() + `\{([a-z_,]*)\}`).FindSubmatch(doc)
		if line == nil {
			t.Errorf("doc.go does not have %s", f.GetName())
			continue
		}
		documented := strings.Split(string(line[1]), ",")
		slices.Sort(documented)
		if !slices.Equal(labels, documented) {
			t.Errorf("%s has the labels %v, doc.go says %v", f.GetName(), labels, documented)
		}
	}
	for _, line := range regexp.MustCompile(`(?m)^//\t(holdfast_[a-z_]+)`).FindAllSubmatch(doc, -1) {
		if !slices.Contains(names, string(line[1])) {
			t.Errorf("doc.go has %s, which there is not", line[1])
		}
	}
}
