package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"
)

func (a *app) logger() *slog.Logger {
	level := a.logLevel
	switch {
	case a.quiet:
		return slog.New(slog.DiscardHandler)
	case a.verbose:
		level = slog.LevelDebug
	}
	return slog.New(a.logHandler(level))
}

func (a *app) logHandler(level slog.Level) slog.Handler {
	o := &slog.HandlerOptions{Level: level}
	if a.logJSON {
		return slog.NewJSONHandler(a.stderr, o)
	}
	return slog.NewTextHandler(a.stderr, o)
}

// warn prints a message for people to standard error.
func (a *app) warn(format string, args ...any) {
	switch {
	case a.quiet:
	case a.logJSON: // whatever the level: these are for people, and few
		slog.New(a.logHandler(slog.LevelInfo)).Info(fmt.Sprintf(format, args...)) //nolint:sloglint // a text for people
	default:
		_ = a.line(a.stderr, "holdfast: "+format, args...)
	}
}

func (a *app) isTerminal(w io.Writer) bool {
	f, ok := raw(w).(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// stdio returns the standard streams of the command under a lock. A stream that is not a file
// is closed for it.
func (a *app) stdio() [3]*os.File {
	in, _ := a.stdin.(*os.File)
	out, _ := raw(a.stdout).(*os.File)
	errs, _ := raw(a.stderr).(*os.File)
	return [3]*os.File{in, out, errs}
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func (a *app) printJSONLine(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func (a *app) table(head []string, rows [][]string) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(head, "\t"))
	for _, r := range rows {
		cells := make([]string, len(r))
		for i, cell := range r {
			cells[i] = oneLine(cell)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}
