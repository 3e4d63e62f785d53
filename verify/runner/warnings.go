package runner

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// warningCollector collects the warnings of a backend when it is opened: each backend checks its own
// server, whose settings and version it knows best. It is a slog.Handler.
type warningCollector struct {
	mu       sync.Mutex
	warnings []string
}

// Enabled reports true for warnings and worse.
func (l *warningCollector) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn
}

// Handle records each warning once.
func (l *warningCollector) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, ", %s %s", strings.ReplaceAll(a.Key, "_", " "), a.Value)
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.warnings, b.String()) {
		l.warnings = append(l.warnings, b.String())
	}
	return nil
}

// WithAttrs ignores the attributes of loggers: no backend has any that matter here.
func (l *warningCollector) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup ignores groups, too.
func (l *warningCollector) WithGroup(string) slog.Handler { return l }

// ask examines a backend that can check its store. A failure of that is a warning, too.
func (l *warningCollector) ask(ctx context.Context, b backend.Backend) {
	e, ok := b.(backend.Examiner)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	found, err := e.Examine(ctx)
	if err != nil {
		found = append(found, backend.Finding{Text: "the settings of the store could not be examined: " + err.Error()})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range found {
		l.warnings = append(l.warnings, f.Text)
	}
}

// all returns the warnings so far, and those that follow from the capabilities of the backend.
func (l *warningCollector) all(caps backend.Capabilities) []string {
	l.mu.Lock()
	out := slices.Clone(l.warnings)
	l.mu.Unlock()
	if !caps.Durable {
		out = append(out, "the store may forget leases and tokens when it restarts: its persistence is off, weaker than each write, or it does not tell")
	}
	if !caps.FIFO {
		out = append(out, "the backend promises no order: a waiter may be passed")
	}
	if !caps.LossPush {
		out = append(out, "the backend does not tell a loss: a holder learns it at its next renewal")
	}
	if caps.ExpiryLag > 5*time.Second {
		out = append(out, fmt.Sprintf("a lease whose holder died may stay held for %s longer than its TTL", caps.ExpiryLag))
	}
	return out
}
