package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/bench"
	"github.com/holdfast-io/holdfast/open"
)

func (a *app) benchCommand() *cobra.Command {
	var o bench.Options
	var benchfmt bool
	cmd := &cobra.Command{
		Use:   "bench [flags]",
		Short: "Measure locks on a backend",
		Long: `Measure the pairs of acquire and release per second on a backend, their latency and how
evenly waiters are served, and check that no two grants conflict. The names of the locks
begin with holdfast-bench/. The figures are the medians of the rounds.

--benchfmt prints every round in Go's benchmark format: benchstat compares two such files.

Exit status: 0; 1 if two clients held a lock at the same time, or nothing could be measured.`,
		Example: `  holdfast bench --backend redis://127.0.0.1:6379
  holdfast bench --only 'one/*' --benchfmt >before.txt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.bench(cmd.Context(), o, benchfmt) },
	}
	f := cmd.Flags()
	f.IntVar(&o.Rounds, "rounds", 5, "number of rounds")
	f.DurationVar(&o.Budget, "time", time.Second, "duration of each measurement in a round")
	f.StringSliceVar(&o.Only, "only", []string{"own/1", "own/8", "own/64", "one/50"}, "scenarios or patterns: "+scenarioNames())
	f.BoolVar(&benchfmt, "benchfmt", false, "print every round in Go's benchmark format")
	f.SortFlags = false
	return cmd
}

func scenarioNames() string {
	var names []string
	for _, s := range bench.Scenarios() {
		if !s.Counts { // nothing counts the requests of a server that runs already
			names = append(names, s.ID)
		}
	}
	return strings.Join(names, ", ")
}

func (a *app) bench(ctx context.Context, o bench.Options, benchfmt bool) error {
	if a.json {
		return usageError("json", "bench prints a table, or with --benchfmt what benchstat reads")
	}
	url, err := a.url()
	if err != nil {
		return err
	}
	if err := a.grants(ctx, url); err != nil {
		return err
	}
	scheme, _, _ := strings.Cut(url, ":")
	engine := &bench.Engine{Name: scheme, URL: url, Contenders: []bench.Contender{
		bench.Ours(func(ctx context.Context, url string) (backend.Backend, error) {
			return open.URL(ctx, url, open.Options{Logger: a.logger()})
		}),
	}}
	if !a.quiet {
		o.Progress = a.stderr
	}
	report, err := bench.Run(ctx, []*bench.Engine{engine}, o)
	if report == nil {
		return err
	}
	report.Commit = revision()
	write := bench.Table
	if benchfmt {
		write = bench.Write
	}
	return errors.Join(err, write(a.stdout, report), report.Verdict())
}

// grants returns an error if the server is in quarantine. Nothing could be measured then: its
// waiters look like those of a server that hangs.
func (a *app) grants(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	b, err := open.URL(ctx, url, open.Options{Logger: a.logger()})
	if err != nil {
		return err
	}
	defer b.Close() //nolint:errcheck // the answer is complete
	if guarded, ok := b.(backend.Guarded); ok {
		if err := guarded.Quarantined(ctx); errors.Is(err, backend.ErrQuarantine) {
			return fmt.Errorf("nothing can be measured: %w", err)
		}
	}
	return nil
}
