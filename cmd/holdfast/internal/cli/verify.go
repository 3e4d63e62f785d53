package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/verify"
	"github.com/holdfast-io/holdfast/verify/history"
	"github.com/holdfast-io/holdfast/verify/runner"
)

// verifyWorkerCommand is the hidden subcommand that runs a worker of verify.
const verifyWorkerCommand = "internal-verify-worker"

// The exit statuses of verify, besides those of bad usage and of signals.
const (
	exitViolation    = 1
	exitInconclusive = 2
	exitNoRun        = 3
)

// verifyWorker runs a worker, in its own process.
func verifyWorker(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) int {
	if err := runner.Worker(ctx, stdin, stdout); err != nil {
		fmt.Fprintln(stderr, err)
		return exitError1
	}
	return exitOK
}

// verifyOptions are the flags of verify.
type verifyOptions struct {
	long    time.Duration
	seed    uint64
	profile string
	ttl     time.Duration
	history string
	rate    int
}

func (a *app) verifyCommand() *cobra.Command {
	var o verifyOptions
	cmd := &cobra.Command{
		Use:   "verify [URL]",
		Short: "Inject faults while workers use a backend, and check its guarantees",
		Long: `Let worker processes compete for locks on a backend while they are stopped and killed and
their network is cut, and judge the recorded history: whether two workers held conflicting
locks at the same time, whether tokens increased, whether a resource that checks tokens
lost an update, whether there is an order of all calls that explains every answer, whether
a waiter was never granted a free lock, and whether anything was left behind.

The run does not disturb other users of the backend: all locks have a random prefix, the
rate is bounded (--rate), all faults are in the workers and in relays in front of them, and
all locks are released. The report lists what was not tested.

--history writes all that happened to a file, which "verify check" judges again.

Exit status: 0 pass; 1 violation; 2 inconclusive; 3 could not run; 64 bad usage.`,
		Example: `  holdfast verify redis://localhost:6379
  holdfast verify etcd://localhost:2379 --for 5m --profile torture --history run.jsonl
  holdfast verify check run.jsonl`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				a.backend = args[0]
			}
			return a.verify(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.long, "for", time.Minute, "how long faults are injected, 1s to 10m")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the plan (default: random)")
	f.StringVar(&o.profile, "profile", string(runner.Standard), "gentle, standard, torture, or jepsen: only an exclusive lock whose holders are stopped")
	f.DurationVar(&o.ttl, "ttl", 0, "TTL of the leases (default: 2s, or the minimum of the backend)")
	f.IntVar(&o.rate, "rate", 0, "maximum number of acquires per second (default: by the profile, 1000 to 12000)")
	f.StringVar(&o.history, "history", "", "write the history to this file; see above")
	f.SortFlags = false
	cmd.AddCommand(a.verifyCheckCommand())
	return cmd
}

func (a *app) verifyCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Judge a recorded history again",
		Args:  cobra.ExactArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return a.judgeFile(cmd.Context(), args[0]) },
	}
}

func (a *app) verify(ctx context.Context, o verifyOptions) error {
	url, err := a.url()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return &statusError{exitNoRun, fmt.Errorf("find this program: %w", err)}
	}
	for o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	h, err := newHearing(ctx, o.history)
	if err != nil {
		return &statusError{exitNoRun, err}
	}
	err = runner.Run(ctx, runner.Config{
		URL: url, For: o.long, Seed: o.seed, Profile: runner.Profile(o.profile), TTL: o.ttl,
		Worker: []string{self, verifyWorkerCommand}, Replay: o.again(url),
		Rate: o.rate, Record: h.record,
		Log: func(text string) { a.warn("%s", text) },
	})
	report := h.referee.Report()
	err = errors.Join(err, h.close())
	if err != nil {
		if ctx.Err() != nil || statusOf(err) == exitUsage {
			return err
		}
		return &statusError{exitNoRun, err}
	}
	if report.Verdict != verify.Pass && h.file == nil {
		name, err := keepEvidence(h.referee.Evidence())
		if err != nil {
			return &statusError{exitNoRun, err}
		}
		defer a.warn("the evidence is in %s; holdfast verify check judges it again", name)
	}
	return a.sayVerdict(report)
}

// again returns the command that replays the run. It contains no password.
func (o *verifyOptions) again(url string) string {
	s := fmt.Sprintf("holdfast verify %s --for %s --seed %d --profile %s", runner.Shown(url), o.long, o.seed, o.profile)
	if o.ttl > 0 {
		s += " --ttl " + o.ttl.String()
	}
	if o.rate > 0 {
		s += fmt.Sprintf(" --rate %d", o.rate)
	}
	return s
}

// hearing passes the events of a run to the referee and, if one was requested, to a file.
type hearing struct {
	referee *verify.Referee
	file    *os.File // nil: the history is not kept
	out     *bufio.Writer
	lines   *history.Writer
}

func newHearing(ctx context.Context, name string) (*hearing, error) {
	h := &hearing{}
	if name != "" {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600) //nolint:gosec // the caller names it
		if err != nil {
			return nil, err
		}
		h.file, h.out = f, bufio.NewWriterSize(f, 1<<20)
		h.lines = history.NewWriter(h.out)
	}
	h.referee = verify.NewReferee(ctx, verify.Options{}, nil)
	return h, nil
}

func (h *hearing) record(e history.Event) error {
	if h.lines != nil {
		if err := h.lines.Write(e); err != nil {
			return err
		}
	}
	return h.referee.Add(e)
}

func (h *hearing) close() error {
	if h.file == nil {
		return nil
	}
	return errors.Join(h.out.Flush(), h.file.Close())
}

// keepEvidence writes the history that shows a verdict to a file, and returns its name.
func keepEvidence(h *history.History) (string, error) {
	f, err := os.CreateTemp("", "holdfast-verify-*.jsonl")
	if err != nil {
		return "", err
	}
	out := bufio.NewWriterSize(f, 1<<20)
	return f.Name(), errors.Join(history.Write(out, h), out.Flush(), f.Close())
}

// judgeFile judges a history that was recorded.
func (a *app) judgeFile(ctx context.Context, name string) error {
	h, err := readHistory(name)
	if err != nil {
		return &statusError{exitNoRun, err}
	}
	return a.sayVerdict(verify.Judge(ctx, h, verify.Options{}))
}

// sayVerdict prints the verdict, and returns the exit status.
func (a *app) sayVerdict(r *verify.Report) error {
	if err := a.printVerdict(r); err != nil {
		return err
	}
	switch r.Verdict {
	case verify.Violation:
		return exitError(exitViolation)
	case verify.Inconclusive:
		return exitError(exitInconclusive)
	case verify.Pass:
	}
	return nil
}

func readHistory(name string) (*history.History, error) {
	f, err := os.Open(name) //nolint:gosec // the caller names it
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	h, err := history.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return h, nil
}

func (a *app) printVerdict(r *verify.Report) error {
	switch {
	case a.json:
		return writeJSON(a.stdout, r)
	case a.quiet:
		_, err := fmt.Fprintln(a.stdout, strings.ToUpper(string(r.Verdict)))
		return err
	default:
		return r.WriteText(a.stdout)
	}
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
