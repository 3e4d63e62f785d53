package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"syscall"

	"github.com/holdfast-io/holdfast"
)

// exitError ends the command with a status and without a message: the message was printed
// before, or the status is another program's.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// statusError ends the command with a status of its own.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// usage is the error of an invalid command line.
type usage struct{ err error }

func (e *usage) Error() string { return e.err.Error() }
func (e *usage) Unwrap() error { return e.err }

func usageError(field, format string, args ...any) error {
	return &usage{err: fmt.Errorf("%s: "+format, append([]any{field}, args...)...)}
}

// configError is the error of a file that a flag names. It is one of usage unless a restart may mend it, as where there are
// too many open files or no space.
func configError(field string, err error) error {
	_, ofSystem := errors.AsType[*fs.PathError](err)
	if ofSystem && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("%s: %w", field, err)
	}
	return usageError(field, "%w", err)
}

func isSilent(err error) bool {
	var exit exitError
	return errors.As(err, &exit)
}

// statusOf returns the exit status for an error.
func statusOf(err error) int {
	var exit exitError
	var own *statusError
	var bad *usage
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return int(exit)
	case errors.As(err, &own):
		return own.status
	case errors.Is(err, holdfast.ErrLost): // also where its renewals were refused: the work was cut short
		return exitLost
	case errors.Is(err, holdfast.ErrRefused): // also where what the store refuses is a value, such as the credentials
		return exitAway
	case errors.As(err, &bad), errors.Is(err, holdfast.ErrInvalid), errors.Is(err, holdfast.ErrUnsupported):
		return exitUsage
	case errors.Is(err, holdfast.ErrHeld):
		return exitHeld
	case errors.Is(err, holdfast.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return exitAway
	case errors.Is(err, context.Canceled):
		return 130
	default:
		return exitError1
	}
}

// sayError reports why the command failed, to people or to programs.
func (a *app) sayError(err error, status int) {
	if a.logJSON {
		slog.New(a.logHandler(slog.LevelError)).Error(err.Error(), slog.Int("status", status)) //nolint:sloglint // a text for people
		return
	}
	if a.json {
		_ = json.NewEncoder(a.stderr).Encode(map[string]any{"error": err.Error(), "status": status})
		return
	}
	for i, part := range parts(err) {
		_ = a.line(a.stderr, "%s%v", [...]string{"holdfast: ", "  "}[min(i, 1)], part)
	}
	if _, ok := errors.AsType[*usage](err); ok {
		fmt.Fprintln(a.stderr, `Try "holdfast help" or add --help.`)
	}
}

// parts returns the errors that errors.Join has combined, or the error itself. A newline in an
// error does not separate parts: the text may be a server's.
func parts(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if ok && errors.Join(joined.Unwrap()...).Error() == err.Error() {
		return joined.Unwrap()
	}
	return []error{err}
}
