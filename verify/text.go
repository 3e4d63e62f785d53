package verify

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/verify/history"
)

// short removes the prefix of the run from a text.
func (r *Report) short(text string) string {
	if r.Header.Prefix == "" {
		return text
	}
	return strings.ReplaceAll(text, r.Header.Prefix, "")
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	h := r.Header
	fmt.Fprintf(&b, "%s: profile %s, seed %d, TTL %s, %.0f s, %s\n", h.Backend, h.Profile, h.Seed, time.Duration(h.SessionTTL), r.Seconds, h.Started)
	for _, text := range h.Warnings {
		fmt.Fprintf(&b, "  warning: %s\n", text)
	}
	b.WriteByte('\n')
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "  %-12s %-9s %s\n", c.Verdict, c.ID, c.Title)
		fmt.Fprintf(&b, "  %-12s %-9s %s\n", "", "", c.Summary)
		for _, f := range c.Details {
			fmt.Fprintf(&b, "      - %s\n", r.short(f.Text))
		}
		if more := c.Found - len(c.Details); more > 0 {
			fmt.Fprintf(&b, "      - and %d more\n", more)
		}
	}
	bare, guarded := r.Registers[history.Bare], r.Registers[history.Guarded]
	fmt.Fprintf(&b, "\n  Under a lock               writes   came late   stopped   updates lost\n")
	for _, row := range []struct {
		name string
		Writes
	}{{"token checked by resource", guarded}, {"token not checked", bare}} {
		fmt.Fprintf(&b, "  %-25s %7d %11d %9d %14d\n", row.name, row.Sent, row.Stale, row.Stopped, row.LostUpdates)
	}
	if len(h.NotTested) > 0 {
		b.WriteString("\n  Not tested:\n")
		for _, text := range h.NotTested {
			fmt.Fprintf(&b, "  - %s\n", text)
		}
	}
	if h.Replay != "" {
		fmt.Fprintf(&b, "\n  Again: %s\n", h.Replay)
	}
	fmt.Fprintf(&b, "\n%s\n", strings.ToUpper(string(r.Verdict)))
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
