package cli

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime/pprof"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/holdfast-io/holdfast/server"
)

// Without the variables the server gets no function to call for a request, and no goroutine runs.
func TestNoTraces(t *testing.T) { //nolint:paralleltest // it sets variables of the process
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		t.Setenv(name, "")
	}
	cfg := server.Config{Logger: slog.New(slog.DiscardHandler)}
	end := traceRequests(t.Context(), &cfg)
	var running bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&running, 2); err != nil {
		t.Fatal(err)
	}
	if cfg.Observe != nil || strings.Contains(running.String(), "go.opentelemetry.io/otel/sdk") {
		t.Errorf("something runs:\n%s", running.String())
	}
	end()
}

// away is an exporter whose receiver may be away.
type away struct {
	sdktrace.SpanExporter

	err error
}

func (a *away) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return a.err }

// An outage is logged once, and the next one again.
func TestOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	receiver := new(away)
	o := &outageLog{SpanExporter: receiver, log: slog.New(slog.NewTextHandler(&log, nil))}
	for i, down := range []bool{true, true, false, false, true, true, true} {
		receiver.err = nil
		if down {
			receiver.err = errors.New("refused")
		}
		if err := o.ExportSpans(t.Context(), nil); err != nil {
			t.Errorf("export %d: %v", i, err)
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 2 {
		t.Errorf("%d lines for two outages:\n%s", n, log.String())
	}
}
