// Package cli implements the command holdfast, with one file for each subcommand.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
	"github.com/holdfast-io/holdfast/internal/acquire"
	"github.com/holdfast-io/holdfast/open"
)

// The exit statuses, as in sysexits.h where there is one.
const (
	exitOK       = 0
	exitError1   = 1
	exitUsage    = 64
	exitLost     = 70
	exitInternal = 71
	exitAway     = 74
	exitHeld     = 75
)

// app has what the subcommands share.
type app struct {
	stdin   io.Reader
	stdout  io.Writer // a visibleWriter
	stderr  io.Writer // a visibleWriter
	backend string    // --backend
	json    bool
	quiet   bool
	verbose bool

	logLevel slog.Level // unless quiet or verbose
	logJSON  bool       // of serve: all that it prints to stderr is JSON
}

// Run runs the command with its arguments, without the program's name, and returns its exit
// status.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == verifyWorkerCommand {
		return verifyWorker(ctx, stdin, stdout, stderr)
	}
	stdout, stderr = visible(stdout), visible(stderr)
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, logLevel: slog.LevelWarn}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	started := false
	for _, cmd := range slices.Concat(root.Commands(), subcommands(root)) {
		if run := cmd.RunE; run != nil {
			cmd.RunE = func(cmd *cobra.Command, args []string) error {
				started = true
				if cmd.Annotations[ownSignals] == "" {
					ctx, stop := interruptible(cmd.Context())
					defer stop()
					cmd.SetContext(ctx)
				}
				return run(cmd, args)
			}
		}
	}
	err := root.ExecuteContext(ctx)
	if err != nil && !started {
		err = &usage{err: err} // cobra failed before it ran a command
	}
	status := statusOf(err)
	if err != nil && !isSilent(err) {
		a.sayError(err, status)
	}
	if status != exitOK && wantsExport(args) {
		fmt.Fprintf(stdout, stopShell, status)
	}
	return status
}

// subcommands returns all commands below the root.
func subcommands(root *cobra.Command) []*cobra.Command {
	var all []*cobra.Command
	for _, cmd := range root.Commands() {
		all = append(all, cmd.Commands()...)
	}
	return all
}

// ownSignals is the annotation of a command that handles signals itself.
const ownSignals = "signals"

// interruptible cancels the context at a signal that would end the process, so that a waiter
// leaves the queue and everything that was opened is closed. The exit status is that of a
// process that the signal ended.
func interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, minded(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)...)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals) // a second signal ends the process
			if n, ok := s.(syscall.Signal); ok {
				cancel(exitError(128 + int(n)))
			}
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}

// minded returns those of the signals that were not ignored when this process was started, as
// nohup, or the & of a script, ignores them. Handling an ignored signal would act on one that
// is not meant for this process.
func minded(signals ...os.Signal) []os.Signal { return slices.DeleteFunc(signals, signal.Ignored) }

// surviveUnread keeps this process alive, from here to its end, when it writes and its standard
// output or error has no reader any more: the lock that it holds is worth more. The commands
// that it starts are still ended by SIGPIPE.
func surviveUnread() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "Distributed locks from a shell, over HTTP and from Go",
		Long: `Holdfast provides distributed locks: exclusive, shared, or with n permits. Every grant has
a fencing token, and most backends grant locks first come, first served.

A backend keeps the locks. --backend or HOLDFAST_BACKEND is its URL:
  sqlite:///path                 one file, for the processes of one host; the default is a file of this user
  redis://host:6379              one Redis; rediss:// for TLS, redis+unix:// for a socket
  redis+cluster://host1,host2    a Redis Cluster; redis+sentinel://host1,host2/name
  redlock://host1,host2,host3    a majority of Redis servers; redlocks:// for TLS
  etcd://host1:2379,host2:2379   etcd; etcds:// for TLS
  zookeeper://host1,host2/path   ZooKeeper
  consul://host:8500             Consul; consuls:// for TLS
  postgres://user@host/database  PostgreSQL; postgres+advisory:// for its advisory locks
  mysql://user@host/database     MariaDB or MySQL; mysql+getlock:// for their user locks
  kubernetes://namespace         Kubernetes
  holdfast://host1,host2:7420    Holdfast servers; holdfasts:// for TLS, holdfast+unix:// for a socket
  memory://                      this process alone

Exit status: 0; 75 the lock is held; 74 the backend is unavailable or refuses this client;
70 the lock was lost; 64 bad usage; 1 any other error. "holdfast run" exits with the status of
its command.`,
		Example: `  holdfast run nightly-report -- ./report.sh
  holdfast ls
  holdfast serve`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.Version = versionText()
	root.SetVersionTemplate("{{.Version}}\n")
	root.PersistentFlags().StringVar(&a.backend, "backend", "", "URL of the backend (default: HOLDFAST_BACKEND, else a file of this user on this host)")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON")
	root.PersistentFlags().BoolVarP(&a.quiet, "quiet", "q", false, "print only errors")
	root.PersistentFlags().BoolVarP(&a.verbose, "verbose", "v", false, "log events to standard error")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usage{err: err} })
	root.AddCommand(
		a.runCommand(), a.acquireCommand(), a.renewCommand(), a.releaseCommand(), a.lsCommand(), a.showCommand(),
		a.breakCommand(), a.watchCommand(), a.serveCommand(), a.doctorCommand(), a.initStoreCommand(),
		a.electCommand(), a.certsCommand(), a.policyCommand(), a.benchCommand(), a.verifyCommand(), a.versionCommand(),
	)
	return root
}

// url returns the URL of the backend: from the flag, the environment, or the file of this user.
func (a *app) url() (string, error) {
	named, err := a.named()
	if err != nil || named != "" {
		return withToken(named), err
	}
	path, err := sqlitelock.DefaultPath()
	if err != nil {
		return "", fmt.Errorf("find the file of this user (or name a backend: --backend, HOLDFAST_BACKEND): %w", err)
	}
	return "sqlite://" + path, nil
}

// named returns the URL that the flag or the environment names; "" if neither does.
func (a *app) named() (string, error) {
	if a.backend != "" {
		return a.backend, nil
	}
	return backendOfEnvironment()
}

// tellScope reports on a terminal that no other user has these locks, where no backend is named.
func (a *app) tellScope() {
	named, err := a.named()
	path, missing := sqlitelock.DefaultPath()
	if err != nil || named != "" || missing != nil || !a.isTerminal(a.stderr) {
		return
	}
	name := strconv.Itoa(os.Geteuid())
	if u, err := user.LookupId(name); err == nil {
		name = u.Username
	}
	a.warn("locks of user %s on this host, %s", name, path)
}

// withToken adds the file that HOLDFAST_TOKEN_FILE names to the URL of Holdfast servers that has no token.
func withToken(raw string) string {
	return remotelock.WithTokenFile(raw, os.Getenv("HOLDFAST_TOKEN_FILE"))
}

func (a *app) open(ctx context.Context) (backend.Backend, error) {
	url, err := a.url()
	if err != nil {
		return nil, err
	}
	const long = 10 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, long, acquire.NoAnswer(long))
	defer cancel()
	return open.URL(ctx, url, open.Options{Logger: a.logger()})
}

// openWithin opens the backend, and retries while it is unavailable and wait has not elapsed.
// It warns of the first failure. It returns how much of the wait is left.
func (a *app) openWithin(ctx context.Context, wait time.Duration) (backend.Backend, time.Duration, error) {
	const firstPause, longestPause = 50 * time.Millisecond, time.Second
	began := time.Now()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		within, cancel := context.WithTimeout(ctx, max(wait-time.Since(began), time.Second))
		b, err := a.open(within)
		cancel()
		left := wait - time.Since(began)
		switch {
		case err == nil && pause == firstPause:
			return b, wait, nil
		case err == nil:
			return b, max(left, 0), nil
		case ctx.Err() != nil:
			return nil, 0, context.Cause(ctx)
		case left <= 0, errors.Is(err, backend.ErrRefused), !errors.Is(err, backend.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded):
			return nil, 0, err
		case pause == firstPause:
			a.warn("%v; retrying until --wait has elapsed", err)
		}
		select {
		case <-time.After(min(pause, left)):
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
}

// client opens the backend and returns a client. The returned function closes both.
func (a *app) client(ctx context.Context, cfg holdfast.Config) (*holdfast.Client, func(), error) {
	b, err := a.open(ctx)
	return a.clientOf(ctx, b, err, cfg)
}

// clientFor is client for a command that takes a lock. With --wait, the store may be
// unavailable for that long, for example while it restarts. The rest of the wait is for the
// lock.
func (a *app) clientFor(ctx context.Context, o *lockOptions, cfg holdfast.Config) (*holdfast.Client, func(), error) {
	if o.try || !o.waitGiven || o.wait <= 0 {
		return a.client(ctx, cfg)
	}
	b, left, err := a.openWithin(ctx, o.wait)
	o.wait = left
	return a.clientOf(ctx, b, err, cfg)
}

// clientOf returns a client of the backend, unless err says that there is no backend.
func (a *app) clientOf(ctx context.Context, b backend.Backend, err error, cfg holdfast.Config) (*holdfast.Client, func(), error) {
	if err != nil {
		return nil, nil, err
	}
	cfg.Logger = a.logger()
	c, err := holdfast.New(b, cfg)
	if err != nil {
		return nil, nil, errors.Join(err, b.Close())
	}
	return c, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if err := errors.Join(c.Close(ctx), b.Close()); err != nil && a.verbose {
			a.warn("%v", err)
		}
	}, nil
}

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
