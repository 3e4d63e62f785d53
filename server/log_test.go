package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// logBuffer collects log lines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// lines returns the lines with the message.
func (l *logBuffer) lines(msg string) []map[string]any {
	var out []map[string]any
	for line := range strings.Lines(l.String()) {
		var m map[string]any
		if json.Unmarshal([]byte(line), &m) == nil && m["msg"] == msg {
			out = append(out, m)
		}
	}
	return out
}

// acts returns the lines of the audit about such acts.
func (l *logBuffer) acts(act string) []map[string]any {
	return slices.DeleteFunc(l.lines("audit"), func(m map[string]any) bool { return m["act"] != act })
}

func contains(b, sub []byte) bool { return bytes.Contains(b, sub) }

// metric reads one sample of /metrics, or returns -1 if there is none.
func metric(a *api, series string) float64 {
	a.t.Helper()
	for line := range strings.Lines(string(a.call("GET", "/metrics", "").body)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
			f, err := strconv.ParseFloat(v, 64)
			if err != nil {
				a.t.Fatal(err)
			}
			return f
		}
	}
	return -1
}

// tokenBackend returns the greatest possible token.
type tokenBackend struct{ backend.Backend }

func (b *tokenBackend) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	g, err := b.Backend.Acquire(ctx, r)
	g.Token = 1<<63 - 1
	return g, err
}

// slowRenewals holds renewals until the gate is closed.
type slowRenewals struct {
	backend.Backend
	gate  chan struct{}
	calls atomic.Int32
	in    atomic.Int32 // leases inside
}

func (b *slowRenewals) inside() int { return int(b.in.Load()) }

func (b *slowRenewals) Renew(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
	if len(r.Leases) > 0 {
		b.calls.Add(1)
		b.in.Add(int32(len(r.Leases)))
		<-b.gate
	}
	return b.Backend.Renew(ctx, r)
}

// blind is a real backend that cannot inspect or break locks.
type blind struct{ backend.Backend }

func (blind) Inspect(context.Context, string) (backend.LockInfo, error) {
	return backend.LockInfo{}, backend.ErrUnsupported
}

func (blind) List(context.Context, backend.ListRequest) (backend.ListPage, error) {
	return backend.ListPage{}, backend.ErrUnsupported
}

func (blind) Break(context.Context, backend.BreakRequest) (backend.BreakResult, error) {
	return backend.BreakResult{}, backend.ErrUnsupported
}

// Every answer has the ID of its request, which the log has too: that of the client if it can stand in
// a log, and otherwise a new one.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	a := start(t, server.Config{Logger: log.logger()})
	seen := make(map[string]bool)
	for _, c := range []struct {
		sent string
		kept bool
	}{
		{"", false},
		{"Root=1-67891233:abc.d_e", false}, // the equals sign
		{"1-67891233:abc.d_E", true},
		{strings.Repeat("a", 64), true},
		{strings.Repeat("a", 65), false},
		{"a b", false},
		{"\u00e9", false},
	} {
		for _, path := range []string{"/v1/locks", "/nowhere"} {
			got := a.call("GET", path, "", "X-Request-Id", c.sent)
			id := got.header.Get("X-Request-Id")
			if (id == c.sent) != c.kept || len(id) < 16 || !c.kept && seen[id] {
				t.Errorf("%q: the answer has %q", c.sent, id)
			}
			seen[id] = true
			leasetest.Eventually(t, "the request is in the log", func() bool {
				return slices.ContainsFunc(log.lines("request"), func(l map[string]any) bool { return l["request"] == id && l["code"] != "" })
			})
		}
	}
	a.take("x", `{"ttl":"1m"}`)
	want[wire.Break](a, 200, "DELETE", lockPath("x"), "", "X-Request-Id", "of-the-break")
	if lines := log.acts("break"); len(lines) != 1 || lines[0]["request"] != "of-the-break" {
		t.Errorf("the log has %v", lines)
	}
}
