package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/bench"
	"github.com/holdfast-io/holdfast/bench/engines"
	"github.com/holdfast-io/holdfast/open"
)

// Peers returns the contenders from other libraries on an engine.
type Peers func(e *bench.Engine) []bench.Contender

// peersProgram is built from bench/peers, which is a module of its own.
const peersProgram = "holdfast-bench-peers"

// benchOptions are the flags of "holdfast bench".
type benchOptions struct {
	bench.Options
	engines []string
	peers   bool
	quick   bool
	out     []string
}

func (a *app) benchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench [flags]",
		Short: "Measure locks: ours, the bare commands of the store, and other libraries",
		Long: `Measure the pairs of acquire and release per second, their latency, how evenly waiters are
served and what each pair costs the server, and check that no two grants conflict. The
contenders take turns in one process; the figures are the medians of the rounds.

With --backend, measure on that server, under names that begin with holdfast-bench/.
Without it, start a local server of each kind whose program is installed, on free ports of
the loopback, and list the programs that are missing.

--peers also measures other libraries. It runs the program ` + peersProgram + `, which
"make bench" builds from bench/peers, from the folder of this program or from $PATH: this
command with the other libraries linked in, so that programs that use Holdfast do not
compile them.

Exit status: 0; 1 if two clients held a lock at the same time, or nothing could be measured.`,
		Example: `  holdfast bench --quick
  holdfast bench --engine redis --only 'own/*'
  holdfast bench --peers --backend redis://127.0.0.1:6379 --only one/100`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.peers && a.peers == nil {
				return a.benchPeers(cmd.Context())
			}
			return a.bench(cmd.Context(), &o, cmd.Flags().Changed)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.peers, "peers", false, "also measure other libraries")
	f.BoolVar(&o.quick, "quick", false, "2 rounds of 200ms: check that the benchmark works; the figures mean little")
	f.IntVar(&o.Rounds, "rounds", 5, "number of rounds for each contender")
	f.DurationVar(&o.Budget, "time", time.Second, "duration of each measurement in a round")
	f.StringSliceVar(&o.engines, "engine", nil, "local servers to start: redis, etcd, ... (default: all that are installed)")
	f.StringSliceVar(&o.Only, "only", nil, "patterns of scenarios, such as own/64 or 'one/*' (default: all)")
	f.StringSliceVar(&o.Contenders, "contender", nil, "patterns of contenders, such as holdfast or raw (default: all)")
	f.IntVar(&o.MaxWaiters, "max-waiters", 0, "skip scenarios with more waiters than this (default: no limit)")
	f.StringSliceVarP(&o.out, "out", "o", nil, "files to write the report to; the extension selects the format: .txt, .json, .html")
	f.SortFlags = false
	return cmd
}

// benchWorkerCommand runs one of the processes that "holdfast bench" starts.
func (a *app) benchWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use: benchWorker, Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench.Work(cmd.Context(), a.stdin, raw(a.stdout), func(ctx context.Context, url, beside string) (*bench.Engine, error) {
				e, err := engines.Open(ctx, url)
				if err == nil {
					engines.SetBeside(e, beside)
					a.addPeers([]*bench.Engine{e})
				}
				return e, err
			})
		},
	}
}

const benchWorker = "bench-worker"

// addPeers adds the peers that are linked into this program.
func (a *app) addPeers(all []*bench.Engine) {
	if a.peers == nil {
		return
	}
	for _, e := range all {
		e.Contenders = append(e.Contenders, a.peers(e)...)
	}
}

// benchPeers runs the program with the peers instead of this one, with the same flags.
func (a *app) benchPeers(ctx context.Context) error {
	path, err := findPeers()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, a.args...) //nolint:gosec // a program of ours, with this one's arguments
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, raw(a.stdout), raw(a.stderr)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exitError(exit.ExitCode())
	}
	return err
}

// findPeers searches the folder of this program, then $PATH.
func findPeers() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), peersProgram)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath(peersProgram)
	if err != nil {
		return "", fmt.Errorf("%s is neither in the folder of this program nor in $PATH: build it with \"make bench-build\", or with \"go build -C bench/peers -o DIR/%s .\": %w", peersProgram, peersProgram, err)
	}
	return path, nil
}

func (a *app) bench(ctx context.Context, o *benchOptions, given func(flag string) bool) error {
	if o.quick {
		if !given("rounds") {
			o.Rounds = 2
		}
		if !given("time") {
			o.Budget = 200 * time.Millisecond
		}
	}
	writers, err := benchWriters(o.out)
	if err != nil {
		return err
	}
	all, missing, err := a.benchEngines(ctx, o)
	if err != nil {
		return err
	}
	a.addPeers(all)
	if self, err := os.Executable(); err == nil {
		o.Worker = []string{self, benchWorker}
	}
	o.Progress = a.benchProgress()
	report, err := bench.Run(ctx, all, o.Options)
	if report == nil {
		return errors.Join(err, engines.Close(all))
	}
	a.clearProgress()
	report.Missing, report.Version = missing, version()
	err = errors.Join(err, a.tellBench(report), writeBench(report, writers), engines.Close(all))
	if err == nil && len(report.Results) == 0 {
		err = errors.New("nothing was measured: no scenario, contender or engine matches the flags")
	}
	if doubles := report.Doubles(); doubles > 0 {
		err = errors.Join(err, fmt.Errorf("holdfast granted a lock to two clients at the same time, or a token that did not increase, %.0f times", doubles))
	}
	return err
}

func (a *app) tellBench(report *bench.Report) error {
	if a.json {
		return a.printJSONLine(report)
	}
	return bench.Table(a.stdout, report)
}

// benchWriter writes a report in one form.
type benchWriter func(w io.Writer, r *bench.Report) error

// benchWriters returns the writer for each file.
func benchWriters(files []string) (map[string]benchWriter, error) {
	writers := make(map[string]benchWriter)
	for _, file := range files {
		switch filepath.Ext(file) {
		case ".txt":
			writers[file] = bench.Table
		case ".json":
			writers[file] = bench.JSON
		case ".html":
			writers[file] = bench.HTML
		default:
			return nil, usageError("out", "%s: must end in .txt, .json or .html", file)
		}
		if _, err := os.Stat(filepath.Dir(file)); err != nil { // fail now rather than after an hour
			return nil, usageError("out", "%w", err)
		}
	}
	return writers, nil
}

func writeBench(report *bench.Report, writers map[string]benchWriter) error {
	var errs []error
	for file, write := range writers {
		var text bytes.Buffer
		err := write(&text, report)
		if err == nil {
			err = os.WriteFile(file, text.Bytes(), 0o644) //nolint:gosec // it is made to be published
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// benchEngines returns the named server, or the servers that can be started here.
func (a *app) benchEngines(ctx context.Context, o *benchOptions) ([]*bench.Engine, []string, error) {
	url := a.backend
	if url == "" && len(o.engines) == 0 {
		var err error
		if url, err = backendOfEnvironment(); err != nil {
			return nil, nil, err
		}
	}
	if url == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, nil, fmt.Errorf("find this program: %w", err)
		}
		return engines.Local(ctx, o.engines, self)
	}
	if len(o.engines) > 0 {
		return nil, nil, usageError("engine", "selects servers that this command starts, and cannot be combined with --backend, which names a running server")
	}
	url = withToken(url)
	if err := a.grants(ctx, url); err != nil {
		return nil, nil, err
	}
	e, err := engines.Open(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	return []*bench.Engine{e}, nil, nil
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

// benchProgress reports what is being measured. On a terminal it rewrites one line.
func (a *app) benchProgress() func(bench.Step) {
	if a.quiet {
		return nil
	}
	begin := time.Now()
	terminal := a.isTerminal(a.stderr)
	last := ""
	return func(s bench.Step) {
		what := s.Engine + " " + s.Scenario
		if terminal {
			left := ""
			if s.Done > 0 {
				spent := time.Since(begin)
				left = ", " + (spent * time.Duration(s.Total-s.Done) / time.Duration(s.Done)).Round(time.Second).String() + " left"
			}
			a.clearLine()
			fmt.Fprintf(a.stderr, "%d/%d %s %s, round %d%s", s.Done+1, s.Total, what, s.Contender, s.Round, left)
			return
		}
		if what != last {
			fmt.Fprintf(a.stderr, "%3d%% %s\n", 100*s.Done/max(1, s.Total), what)
			last = what
		}
	}
}

func (a *app) clearProgress() {
	if !a.quiet && a.isTerminal(a.stderr) {
		a.clearLine()
	}
}

func (a *app) clearLine() { a.control(a.stderr, "\r\x1b[K") }
