package embedded

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// bridge passes the errors of etcd, which logs with zap, to a slog logger.
func bridge(l *slog.Logger) *zap.Logger {
	return zap.New(core{log: l.With(slog.String("component", "etcd"))})
}

// core is a zap core. Messages of etcd below an error concern only etcd itself.
type core struct{ log *slog.Logger }

// Enabled reports whether the level is an error or worse.
func (c core) Enabled(l zapcore.Level) bool { return l >= zapcore.ErrorLevel }

// With adds attributes to all entries that follow.
func (c core) With(fields []zapcore.Field) zapcore.Core {
	args := make([]any, 0, len(fields))
	for _, a := range attrs(fields) {
		args = append(args, a)
	}
	return core{log: c.log.With(args...)}
}

// harmless reports whether a message is no error: at the first start of a node, which has no
// storage version yet; at the end of its sockets when the node is closed; and at a failed
// start, whose error the caller gets.
func harmless(message string) bool {
	switch message {
	case "failed to update storage version", "setting up serving from embedded etcd failed.", "bootstrap failed",
		"rejecting promote learner: learner is not ready": // it is retried
		return true
	}
	return false
}

// Check adds the core to an entry that it is going to write.
func (c core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && !harmless(e.Message) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write passes an entry to the logger. It never fails.
func (c core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.LogAttrs(context.Background(), slog.LevelError, e.Message, attrs(fields)...) //nolint:sloglint // it is what etcd says
	return nil
}

// Sync does nothing.
func (c core) Sync() error { return nil }

func attrs(fields []zapcore.Field) []slog.Attr {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	as := make([]slog.Attr, 0, len(enc.Fields))
	for k, v := range enc.Fields {
		as = append(as, slog.Any(k, v))
	}
	return as
}
