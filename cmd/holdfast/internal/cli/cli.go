// Package cli implements the command holdfast, with one file for each subcommand.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"
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
		err = &usage{err: errors.New(suggestion().Replace(err.Error()))} //nolint:err113 // cobra failed before it ran a command
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

// suggestion puts what cobra suggests for a mistyped command into the line of its error.
func suggestion() *strings.Replacer {
	return strings.NewReplacer("\n\nDid you mean this?\n\t", "; did you mean ", "\n\t", ", ", "\n", "")
}

// subcommands returns all commands below the root.
func subcommands(root *cobra.Command) []*cobra.Command {
	var all []*cobra.Command
	for _, cmd := range root.Commands() {
		all = append(all, cmd.Commands()...)
	}
	return all
}

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
