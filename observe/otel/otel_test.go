package otel_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/observe/otel"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// kind is a name function that bounds the values of a label.
func kind(lock string) string {
	first, _, _ := strings.Cut(lock, ":")
	return first
}

// observed runs f with a client, and returns the spans and the metrics when its hooks have run.
func observed(t *testing.T, f func(ctx context.Context, tracer *sdk.TracerProvider, c *holdfast.Client, store *memlock.Store)) (map[string]tracetest.SpanStub, metricdata.ResourceMetrics) {
	t.Helper()
	spans, reader := tracetest.NewInMemoryExporter(), metric.NewManualReader()
	tracers := sdk.NewTracerProvider(sdk.WithSyncer(spans))
	watch, err := otel.New(otel.Options{Tracers: tracers, Meters: metric.NewMeterProvider(metric.WithReader(reader)), Backend: "memory", Name: kind})
	if err != nil {
		t.Fatal(err)
	}
	store := memlock.NewStore()
	b := store.Open()
	t.Cleanup(func() { _ = b.Close() })
	c, err := holdfast.New(b, holdfast.Config{Hooks: watch.Hooks()})
	if err != nil {
		t.Fatal(err)
	}
	f(t.Context(), tracers, c, store)
	if err := c.Close(t.Context()); err != nil { // it waits for the hooks
		t.Fatal(err)
	}
	var got metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]tracetest.SpanStub)
	for _, s := range spans.GetSpans() {
		byName[s.Name] = s
	}
	return byName, got
}

func attributes(s tracetest.SpanStub) map[attribute.Key]string {
	all := make(map[attribute.Key]string)
	for _, a := range s.Attributes {
		all[a.Key] = a.Value.String()
	}
	return all
}

// A lock has two spans, which belong to the caller's, and the hold refers to the acquire, also when it is
// released in another span.
func TestSpans(t *testing.T) {
	t.Parallel()
	const held = 30 * time.Millisecond
	var lock *holdfast.Lock
	spans, metrics := observed(t, func(ctx context.Context, tracers *sdk.TracerProvider, c *holdfast.Client, _ *memlock.Store) {
		caller, span := tracers.Tracer("program").Start(ctx, "caller")
		var err error
		if lock, err = c.Acquire(caller, "order:7"); err != nil {
			t.Fatal(err)
		}
		span.End()
		<-time.After(held)
		other, span := tracers.Tracer("program").Start(ctx, "other")
		if err := lock.Release(other); err != nil {
			t.Fatal(err)
		}
		span.End()
	})
	caller, acquire, hold := spans["caller"], spans["holdfast.acquire"], spans["holdfast.hold"]
	for _, s := range []tracetest.SpanStub{acquire, hold} {
		if s.Parent.SpanID() != caller.SpanContext.SpanID() || s.SpanContext.TraceID() != caller.SpanContext.TraceID() {
			t.Errorf("%s is not in the span of the caller", s.Name)
		}
		a := attributes(s)
		if a["holdfast.lock"] != "order:7" || a["holdfast.token"] != lock.Token().String() || a["holdfast.backend"] != "memory" || a["holdfast.mode"] != "exclusive" {
			t.Errorf("%s has %v", s.Name, a)
		}
	}
	if attributes(acquire)["holdfast.result"] != "acquired" || attributes(hold)["holdfast.cause"] != "released" {
		t.Errorf("%v, %v", attributes(acquire), attributes(hold))
	}
	if len(hold.Links) != 1 || hold.Links[0].SpanContext.SpanID() != acquire.SpanContext.SpanID() {
		t.Errorf("the links of the hold: %v", hold.Links)
	}
	if took := hold.EndTime.Sub(hold.StartTime); took < held {
		t.Errorf("it was held for %s", took)
	}
	names := make(map[string]bool)
	for _, scope := range metrics.ScopeMetrics {
		for _, m := range scope.Metrics {
			names[m.Name] = true
			h, ok := m.Data.(metricdata.Histogram[float64])
			if !ok {
				continue
			}
			for _, p := range h.DataPoints {
				if v, _ := p.Attributes.Value("holdfast.lock"); v.AsString() != "order" || p.Count != 1 {
					t.Errorf("%s has %v, %d times", m.Name, p.Attributes.ToSlice(), p.Count)
				}
			}
		}
	}
	if !names["holdfast.acquire.wait"] || !names["holdfast.hold"] {
		t.Errorf("the metrics are %v", names)
	}
}

// A lock that is held is an outcome, and a lost lock is an error.
func TestFailures(t *testing.T) {
	t.Parallel()
	spans, _ := observed(t, func(ctx context.Context, _ *sdk.TracerProvider, c *holdfast.Client, store *memlock.Store) {
		b := store.Open()
		defer func() { _ = b.Close() }()
		other, err := holdfast.New(b, holdfast.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Close(ctx) }()
		lock, err := other.Acquire(ctx, "order:7")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.TryAcquire(ctx, "order:7"); !errors.Is(err, holdfast.ErrHeld) {
			t.Fatal(err)
		}
		if err := lock.Release(ctx); err != nil {
			t.Fatal(err)
		}
	})
	if s := spans["holdfast.acquire"]; s.Status.Code == codes.Error || attributes(s)["holdfast.result"] != "held" {
		t.Errorf("a lock that is held: %+v", s)
	}
	spans, metrics := observed(t, func(ctx context.Context, _ *sdk.TracerProvider, c *holdfast.Client, _ *memlock.Store) {
		lock, err := c.Acquire(ctx, "order:7")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Break(ctx, "order:7", "why"); err != nil {
			t.Fatal(err)
		}
		<-lock.Context().Done()
	})
	if s := spans["holdfast.hold"]; s.Status.Code != codes.Error || attributes(s)["holdfast.cause"] != "broken" {
		t.Errorf("a lock that was lost: %+v", s)
	}
	for _, scope := range metrics.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && (m.Name != "holdfast.lost" || sum.DataPoints[0].Value != 1) {
				t.Errorf("%s: %v", m.Name, sum)
			}
		}
	}
}

// sampled drops every span but these.
type sampled []string

func (s sampled) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	if slices.Contains(s, p.Name) {
		return sdk.SamplingResult{Decision: sdk.RecordAndSample}
	}
	return sdk.SamplingResult{Decision: sdk.Drop}
}

func (sampled) Description() string { return "by name" }

// No hook reports the end of a lock that was detached. However many there were, the span of a lock that is
// held later is in that of its caller.
func TestDetached(t *testing.T) {
	t.Parallel()
	const detached = 100_001 // more than are remembered
	spans := tracetest.NewInMemoryExporter()
	tracers := sdk.NewTracerProvider(sdk.WithSyncer(spans), sdk.WithSampler(sampled{"caller", "holdfast.hold"}))
	watch, err := otel.New(otel.Options{Tracers: tracers, Meters: metric.NewMeterProvider()})
	if err != nil {
		t.Fatal(err)
	}
	hooks := watch.Hooks()
	for i := range detached { // as a client reports them
		hooks.Acquired(t.Context(), holdfast.AcquiredEvent{
			Lock: holdfast.Lease{Name: "quota:" + strconv.Itoa(i), ID: backend.NewLeaseID()}, Token: fence.Token(i + 1),
		})
	}
	b := memlock.NewStore().Open()
	defer func() { _ = b.Close() }()
	c, err := holdfast.New(b, holdfast.Config{Hooks: hooks})
	if err != nil {
		t.Fatal(err)
	}
	ctx, caller := tracers.Tracer("program").Start(t.Context(), "caller")
	lock, err := c.Acquire(ctx, "order:7")
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	caller.End()
	if err := c.Close(t.Context()); err != nil { // it waits for the hooks
		t.Fatal(err)
	}
	for _, s := range spans.GetSpans() {
		if s.Name == "holdfast.hold" && s.Parent.SpanID() != caller.SpanContext().SpanID() {
			t.Error("the hold is not in the span of the caller")
		}
	}
	if n := len(spans.GetSpans()); n != 2 {
		t.Errorf("%d spans, want the caller's and the hold's", n)
	}
}
