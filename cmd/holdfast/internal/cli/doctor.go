package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/observe/health"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check the backend: its availability, speed and capabilities",
		Long: `Acquire and release a lock on the backend, examine its servers, and report the result:

  healthy    locks can be acquired
  degraded   locks can be acquired, but the backend is slow, some servers are unavailable
             while a majority remains, or a setting or a version weakens the guarantees
  unhealthy  no lock can be acquired

A note is a fact that is usual and weakens nothing, such as a store of one server.

Exit status: 0 healthy; 1 degraded; 74 unhealthy; 64 for an invalid URL.`,
		Example: `  holdfast doctor --backend redis://127.0.0.1:6379
  holdfast doctor --backend redlock://a,b,c --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context()) },
	}
}

const (
	doctorTimeout = 15 * time.Second
	doctorSamples = 5
)

func (a *app) doctor(ctx context.Context) error {
	b, err := a.open(ctx)
	if errors.Is(err, holdfast.ErrUnavailable) {
		return a.diagnose(health.Report{Status: health.Unhealthy, Err: err}, nil)
	}
	if err != nil {
		return err
	}
	defer b.Close()                                                                            //nolint:errcheck // a failure to release no longer matters
	c, err := holdfast.New(b, holdfast.Config{Timeout: doctorTimeout / 3, Logger: a.logger()}) //nolint:mnd // less than all
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = c.Close(ctx)
	}()
	check, err := health.New(c, b, health.Config{Timeout: doctorTimeout, Samples: doctorSamples})
	if err != nil {
		return err
	}
	r := check.Check(ctx)
	if err := context.Cause(ctx); err != nil {
		return err // interrupted: that means nothing about the backend
	}
	caps := b.Capabilities()
	return a.diagnose(r, &caps)
}

// diagnose prints the report, and returns the exit status as an error. caps is nil if the
// backend could not be opened.
func (a *app) diagnose(r health.Report, caps *backend.Capabilities) error {
	if err := a.printHealth(r, caps); err != nil {
		return err
	}
	switch r.Status {
	case health.Degraded:
		return exitError(exitError1)
	case health.Unhealthy:
		return &statusError{exitAway, r.Err}
	case health.Healthy:
	}
	return nil
}

func (a *app) printHealth(r health.Report, caps *backend.Capabilities) error {
	if a.json {
		out := map[string]any{"health": r.Status, "found": append([]string{}, r.Found...), "notes": append([]string{}, r.Notes...)}
		if caps != nil {
			out["backend"], out["capabilities"] = r.Backend, caps
		}
		if r.Took > 0 {
			out["acquire_and_release_ms"] = float64(r.Took.Microseconds()) / 1000
		}
		return a.printJSON(out)
	}
	row := []string{string(r.Status), "-", "-", "-", "-", "-", "-"}
	if caps != nil {
		row = []string{
			string(r.Status), caps.Name, "-", strconv.FormatBool(caps.FIFO), strconv.FormatBool(caps.Push), caps.TokenKind, caps.MinTTL.String(),
		}
		if r.Took > 0 {
			row[2] = r.Took.Round(10 * time.Microsecond).String()
		}
	}
	if err := a.table([]string{"HEALTH", "BACKEND", "ACQUIRE+RELEASE", "FIRST COME FIRST SERVED", "PUSH", "TOKENS", "SHORTEST TTL"}, [][]string{row}); err != nil {
		return err
	}
	for _, f := range r.Found {
		if err := a.line(a.stdout, "%s", f); err != nil {
			return fmt.Errorf("write the answer: %w", err)
		}
	}
	for _, n := range r.Notes {
		if err := a.line(a.stdout, "note: %s", n); err != nil {
			return fmt.Errorf("write the answer: %w", err)
		}
	}
	return nil
}
