package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-io/holdfast/server"
)

const (
	// lastSpans bounds how long the end of the server waits for the spans that have not been sent.
	lastSpans = 5 * time.Second
	// lostSpans bounds it while no spans can be sent.
	lostSpans = 500 * time.Millisecond
)

// traceRequests makes the server export a span of each request by OTLP, if the standard variables ask for
// it; otherwise it starts nothing. A fault of the variables is logged, because they are often set for all programs of
// a host and must not keep locks from being served. The function that it returns sends the last spans.
func traceRequests(ctx context.Context, cfg *server.Config) func() {
	asked, err := tracesAsked()
	if err != nil {
		cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "traces are not exported", slog.String("error", err.Error()))
	}
	if !asked || err != nil {
		return func() {}
	}
	// OpenTelemetry has one log and one handler of errors in a process, and writes to standard error by default.
	otel.SetLogger(logr.FromSlogHandler(messagesOnly{cfg.Logger.Handler()}))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "OpenTelemetry", slog.String("error", err.Error()))
	}))
	exporter, err := otlptracegrpc.New(ctx) // it connects when there are spans
	if err != nil {
		cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "traces are not exported", slog.String("error", err.Error()))
		return func() {}
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(semconv.ServiceName("holdfast"), semconv.ServiceVersion(cfg.Version)),
		resource.WithFromEnv()) // the last one wins
	if err != nil {
		cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "the resource of the traces is incomplete", slog.String("error", err.Error()))
	}
	// The provider is not the one of the process: spans of etcd, which have keys, stay out.
	spans := &outageLog{SpanExporter: exporter, log: cfg.Logger}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(spans), sdktrace.WithResource(about))
	cfg.Observe = requestSpans{provider.Tracer("github.com/holdfast-io/holdfast/server")}.observe
	return func() {
		patience := lastSpans
		if spans.out.Load() {
			patience = lostSpans
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		if err := provider.Shutdown(last); err != nil {
			cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "the last spans were not exported", slog.String("error", err.Error()))
		}
	}
}

// tracesAsked reports whether the variables of OpenTelemetry ask for traces, and what in them is not
// possible here. The exporter reads the others: headers, certificates, time-outs. No value is in the error: it may have a password.
func tracesAsked() (bool, error) {
	const endpoint, tracesEndpoint = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	name := firstSet(tracesEndpoint, endpoint)
	exporter := os.Getenv("OTEL_TRACES_EXPORTER")
	if name == "" || exporter == "none" || strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	if exporter != "" && exporter != "otlp" {
		return true, errors.New("OTEL_TRACES_EXPORTER must be otlp or none")
	}
	if protocol := firstSet("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol != "" && os.Getenv(protocol) != "grpc" {
		return true, fmt.Errorf("%s must be grpc", protocol)
	}
	u, err := url.Parse(os.Getenv(name))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return true, fmt.Errorf("%s must be http://HOST:PORT or https://HOST:PORT of a receiver of OTLP over gRPC, without a path", name)
	}
	return true, nil
}

// firstSet returns the first of the variables that is not empty, or "".
func firstSet(names ...string) string {
	if i := slices.IndexFunc(names, func(name string) bool { return os.Getenv(name) != "" }); i >= 0 {
		return names[i]
	}
	return ""
}

// requestSpans makes the spans of requests.
type requestSpans struct{ tracer trace.Tracer }

// observe makes the span of a request that has been served. Only the route of its path is in the span, because
// paths and queries have names of locks and IDs of leases.
func (s requestSpans) observe(r *http.Request, served server.Served) {
	if slices.Contains([]string{"/healthz", "/readyz", "/metrics"}, served.Route) {
		return
	}
	name, method := r.Method, semconv.HTTPRequestMethodKey.String(r.Method)
	attrs := make([]attribute.KeyValue, 0, 5)
	switch {
	case served.Route != "":
		name += " " + served.Route
		attrs = append(attrs, semconv.HTTPRoute(served.Route))
	case !slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions}, r.Method):
		name, method = "HTTP", semconv.HTTPRequestMethodOther // a client may send any word
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	attrs = append(attrs, method, semconv.URLScheme(scheme), semconv.HTTPResponseHeader("x-request-id", served.ID))
	if served.Code != 0 {
		attrs = append(attrs, semconv.HTTPResponseStatusCode(served.Code))
	}
	parent := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	_, span := s.tracer.Start(parent, name, trace.WithTimestamp(served.Arrived), trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attrs...))
	if served.Code >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, "")
	}
	span.End()
}

// outageLog is an exporter that logs an error once until an export succeeds.
type outageLog struct {
	sdktrace.SpanExporter

	log *slog.Logger
	out atomic.Bool
}

// ExportSpans exports the spans. An error is never returned, because OpenTelemetry would log each.
func (o *outageLog) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := o.SpanExporter.ExportSpans(ctx, spans)
	if err != nil && !o.out.Swap(true) {
		o.log.LogAttrs(ctx, slog.LevelWarn, "spans are lost: they cannot be exported; this is logged once until it works again", slog.String("error", err.Error()))
	}
	if err == nil {
		o.out.Store(false)
	}
	return nil
}

// messagesOnly drops the attributes of log records: in those of OpenTelemetry are values of variables, which may be secrets.
type messagesOnly struct{ slog.Handler }

// Handle logs the message.
func (m messagesOnly) Handle(ctx context.Context, r slog.Record) error {
	return m.Handler.Handle(ctx, slog.NewRecord(r.Time, r.Level, "OpenTelemetry: "+r.Message, 0))
}

// WithAttrs returns the same handler.
func (m messagesOnly) WithAttrs([]slog.Attr) slog.Handler { return m }

// WithGroup returns the same handler.
func (m messagesOnly) WithGroup(string) slog.Handler { return m }
