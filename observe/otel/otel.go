package otel

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/fence"
)

// scope is the name of the tracer and of the meter.
const scope = "github.com/holdfast-io/holdfast/observe/otel"

// The keys of the attributes.
const (
	keyBackend = attribute.Key("holdfast.backend")
	keyLock    = attribute.Key("holdfast.lock")
	keyToken   = attribute.Key("holdfast.token")
	keyMode    = attribute.Key("holdfast.mode")
	keyResult  = attribute.Key("holdfast.result")
	keyQueue   = attribute.Key("holdfast.in_queue")
	keyCause   = attribute.Key("holdfast.cause")
)

// Options configure New.
type Options struct {
	// Tracers and Meters make the spans and the metrics. Default: those of the program, as
	// otel.SetTracerProvider and otel.SetMeterProvider set them. Optional.
	Tracers trace.TracerProvider
	Meters  metric.MeterProvider
	// Backend is the value of the attribute holdfast.backend: "redis". Default: "unknown". Optional.
	Backend string
	// Name reduces the name of a lock to the value of the attribute holdfast.lock of the metrics, such
	// as "order" for "order:7". It must return few values, and must not block. With "" there is no
	// attribute. Default: always "". Optional.
	Name func(lock string) string
}

// Telemetry are the spans and metrics of one client. Its methods are safe for concurrent use.
type Telemetry struct {
	backend string
	name    func(lock string) string
	tracer  trace.Tracer
	wait    metric.Float64Histogram
	hold    metric.Float64Histogram
	lost    metric.Int64Counter

	mu   sync.Mutex
	held map[held]*list.Element // the elements of ages, which are of type spans
	ages *list.List             // the oldest first
}

// held identifies a lock that is held.
type held struct {
	lease string
	name  string
	token fence.Token
}

// spans are what the span of a lock that is held belongs to.
type spans struct {
	of              held
	parent, acquire trace.SpanContext
}

// mostHeld is how many locks are remembered until they end. No hook reports the end of a lock that was
// detached, and hooks can be dropped: beyond mostHeld the oldest lock is forgotten, so that these do not
// take the place of locks that are held.
const mostHeld = 100_000

// New returns the spans and metrics of one client. The error is that of the meter.
func New(o Options) (*Telemetry, error) {
	if o.Tracers == nil {
		o.Tracers = otel.GetTracerProvider()
	}
	if o.Meters == nil {
		o.Meters = otel.GetMeterProvider()
	}
	t := &Telemetry{backend: cmp.Or(o.Backend, "unknown"), name: o.Name, tracer: o.Tracers.Tracer(scope), held: make(map[held]*list.Element), ages: list.New()}
	meter := o.Meters.Meter(scope)
	var errs [3]error
	t.wait, errs[0] = meter.Float64Histogram("holdfast.acquire.wait", metric.WithUnit("s"), metric.WithDescription("from the call to the grant or the failure"))
	t.hold, errs[1] = meter.Float64Histogram("holdfast.hold", metric.WithUnit("s"), metric.WithDescription("from the grant to the release or the loss"))
	t.lost, errs[2] = meter.Int64Counter("holdfast.lost", metric.WithDescription("locks that their holder lost"))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("otel: %w", err)
	}
	return t, nil
}

// Hooks returns the hooks for holdfast.Config. They do not block, unless a processor of spans does.
func (t *Telemetry) Hooks() *holdfast.Hooks {
	return &holdfast.Hooks{Acquired: t.acquired, Failed: t.failed, Released: t.released, Lost: t.lostLock}
}

// labels returns the attributes that all metrics have.
func (t *Telemetry) labels(lock string, shared bool, more ...attribute.KeyValue) metric.MeasurementOption {
	all := append(more, keyBackend.String(t.backend), mode(shared))
	if t.name != nil {
		if name := t.name(lock); name != "" {
			all = append(all, keyLock.String(name))
		}
	}
	return metric.WithAttributes(all...)
}

func mode(shared bool) attribute.KeyValue {
	if shared {
		return keyMode.String("shared")
	}
	return keyMode.String("exclusive")
}

// span makes a span that ends now.
func (t *Telemetry) span(ctx context.Context, name string, took time.Duration, links []trace.Link, attributes ...attribute.KeyValue) trace.Span {
	now := time.Now()
	_, s := t.tracer.Start(ctx, name, trace.WithTimestamp(now.Add(-took)), trace.WithSpanKind(trace.SpanKindClient), trace.WithLinks(links...), //nolint:spancheck // its caller ends it
		trace.WithAttributes(append(attributes, keyBackend.String(t.backend))...))
	return s //nolint:spancheck // as above
}

func (t *Telemetry) acquired(ctx context.Context, e holdfast.AcquiredEvent) {
	result := keyResult.String(string(holdfast.ResultAcquired))
	t.wait.Record(ctx, e.Waited.Seconds(), t.labels(e.Lock.Name, e.Shared, result))
	s := t.span(ctx, "holdfast.acquire", e.Waited, nil, keyLock.String(e.Lock.Name), keyToken.Int64(int64(e.Token)), //nolint:gosec // valid tokens fit
		mode(e.Shared), result, keyQueue.Bool(e.InQueue))
	s.End()
	key := held{string(e.Lock.ID), e.Lock.Name, e.Token}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(key) // it may have been detached, and is held again
	if len(t.held) == mostHeld {
		t.forget(t.ages.Front().Value.(spans).of) //nolint:forcetypeassert // only spans are put in
	}
	t.held[key] = t.ages.PushBack(spans{key, trace.SpanContextFromContext(ctx), s.SpanContext()})
}

// forget removes a lock, and returns its spans if it was remembered. Telemetry.mu is held.
func (t *Telemetry) forget(key held) (spans, bool) {
	e, known := t.held[key]
	if !known {
		return spans{}, false
	}
	delete(t.held, key)
	return t.ages.Remove(e).(spans), true //nolint:forcetypeassert // as above
}

func (t *Telemetry) failed(ctx context.Context, e holdfast.FailedEvent) {
	result := keyResult.String(string(e.Result))
	t.wait.Record(ctx, e.Waited.Seconds(), t.labels(e.Name, e.Shared, result))
	s := t.span(ctx, "holdfast.acquire", e.Waited, nil, keyLock.String(e.Name), mode(e.Shared), result)
	defer s.End()
	if e.Result != holdfast.ResultHeld && e.Result != holdfast.ResultCanceled { // these two are outcomes
		s.SetStatus(codes.Error, e.Err.Error())
	}
}

func (t *Telemetry) released(ctx context.Context, e holdfast.ReleasedEvent) {
	s := t.ended(ctx, e.Lock, e.Token, e.Shared, e.Held, "released")
	defer s.End()
	if e.Err != nil {
		s.SetStatus(codes.Error, e.Err.Error())
	}
}

func (t *Telemetry) lostLock(ctx context.Context, e holdfast.LostEvent) {
	t.lost.Add(ctx, 1, t.labels(e.Lock.Name, e.Shared, keyCause.String(string(e.Cause))))
	s := t.ended(ctx, e.Lock, e.Token, e.Shared, e.Held, string(e.Cause))
	s.SetStatus(codes.Error, "the lock was lost: "+string(e.Cause))
	s.End()
}

// ended records the end of a lock, and returns its span.
func (t *Telemetry) ended(ctx context.Context, lock holdfast.Lease, token fence.Token, shared bool, took time.Duration, cause string) trace.Span {
	t.hold.Record(ctx, took.Seconds(), t.labels(lock.Name, shared, keyCause.String(cause)))
	key := held{string(lock.ID), lock.Name, token}
	t.mu.Lock()
	of, known := t.forget(key)
	t.mu.Unlock()
	var links []trace.Link
	if known {
		ctx = trace.ContextWithSpanContext(ctx, of.parent) // the context of a release is that of its own call
		links = []trace.Link{{SpanContext: of.acquire}}
	}
	return t.span(ctx, "holdfast.hold", took, links, keyLock.String(lock.Name), keyToken.Int64(int64(token)), mode(shared), keyCause.String(cause)) //nolint:gosec // as above
}
