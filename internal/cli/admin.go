package cli

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

func (a *app) breakCommand() *cobra.Command {
	var reason, lease string
	var yes bool
	cmd := &cobra.Command{
		Use:   "break NAME --reason TEXT [--lease ID]",
		Short: "Take a lock away from its holders",
		Long: `Take a lock away from its holders. They are notified of the loss, with the reason, and the
lock is granted to the first waiters in the queue. The token is raised: a resource that
checks tokens refuses later writes of the former holders.

With --lease only that lease loses the lock, and nothing is broken if it does not hold it any
more. "holdfast show" lists the leases.

Without --yes, show the current holders, and ask for confirmation if there is a terminal.`,
		Example:           `  holdfast break nightly-report --reason "host is gone" --yes`,
		Args:              oneName,
		ValidArgsFunction: a.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if reason == "" {
				return usageError("reason", `"": must be given: the holders and the audit log get it`)
			}
			c, done, err := a.client(cmd.Context(), holdfast.Config{})
			if err != nil {
				return err
			}
			defer done()
			return a.breakLock(cmd.Context(), c, args[0], holdfast.LeaseID(lease), reason, yes)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason, which the holders and the audit log get (required)")
	cmd.Flags().StringVar(&lease, "lease", "", "the only lease that loses the lock (default all)")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}

func (a *app) breakLock(ctx context.Context, c *holdfast.Client, name string, lease holdfast.LeaseID, reason string, yes bool) error {
	info, err := c.Inspect(ctx, name)
	if err != nil {
		return err
	}
	if !yes {
		if !a.json {
			if err := a.printLock(info); err != nil {
				return err
			}
		}
		if a.terminal() < 0 {
			return usageError("yes", "nothing was broken; add --yes to break %q", name)
		}
		what := fmt.Sprintf("%q, which %d hold", name, len(info.Holders))
		if lease != "" {
			what = fmt.Sprintf("lease %q of %q", string(lease), name)
		}
		fmt.Fprintf(a.stderr, "holdfast: break %s? Type yes: ", what)
		line, err := bufio.NewReader(a.stdin).ReadString('\n')
		if err != nil || strings.TrimSpace(line) != "yes" {
			return usageError("yes", "nothing was broken")
		}
	}
	var res holdfast.BreakResult
	if lease == "" {
		res, err = c.Break(ctx, name, reason)
	} else {
		res, err = c.BreakLease(ctx, name, lease, reason)
	}
	if err != nil {
		return err
	}
	if a.json {
		broken := make([]holderOut, 0, len(res.Broken))
		for _, h := range res.Broken {
			broken = append(broken, holderOf(h))
		}
		return a.printJSON(map[string]any{"name": name, "token": uint64(res.Token), "broken": broken})
	}
	switch {
	case len(res.Broken) > 0:
	case lease != "":
		return a.line(a.stdout, "%s: that lease does not hold it, nothing was broken", name)
	default:
		return a.line(a.stdout, "%s: no client held it, nothing was broken", name)
	}
	return a.line(a.stdout, "%s: %d lost it; tokens are above %d now", name, len(res.Broken), res.Token-1)
}

func (a *app) watchCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "watch [PREFIX]",
		Short: "Print what happens to locks, as it happens",
		Long: `Print the events of the locks whose names begin with PREFIX, one line each, until
interrupted. With --json each line is a JSON object.`,
		Example: `  holdfast watch order/`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, done, err := a.client(cmd.Context(), holdfast.Config{})
			if err != nil {
				return err
			}
			defer done()
			err = c.Watch(cmd.Context(), strings.Join(args, ""), a.printEvent)
			if cmd.Context().Err() != nil {
				return nil
			}
			return err
		},
	}
}

func (a *app) printEvent(e holdfast.Event) {
	if a.json {
		out := map[string]any{"event": e.Kind, "at": stamp(e.At)}
		if e.Kind != backend.EventWatching {
			out["name"], out["lease"], out["owner"], out["shared"] = e.Name, e.Lease, e.Owner, e.Mode == backend.Shared
		}
		if e.Token > 0 {
			out["token"] = uint64(e.Token)
		}
		if e.Reason != "" {
			out["reason"] = e.Reason
		}
		_ = a.printJSONLine(out)
		return
	}
	if e.Kind == backend.EventWatching {
		a.warn("watching")
		return
	}
	token := "-"
	if e.Token > 0 {
		token = strconv.FormatUint(uint64(e.Token), 10)
	}
	_ = a.line(a.stdout, "%s  %-9s %-9s %-16s token %s  %s %s", e.At.Local().Format("15:04:05.000"), e.Kind, e.Mode, e.Owner, token, e.Name, e.Reason)
}

func (a *app) initStoreCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init-store",
		Short: "Prepare the backend: create its schema if it has one",
		Long: `Open the backend, and create its schema if it does not exist: the local file, or the tables
in PostgreSQL, MySQL or MariaDB. Other backends have no schema and are only opened.
Repeating the command changes nothing.

A role that may use the tables but not create them needs SELECT, INSERT, UPDATE and DELETE
on all tables, and in PostgreSQL USAGE on the schema and, for advisory locks, on its
sequence. The role that created the tables grants these privileges.`,
		Example: `  holdfast init-store --backend sqlite:///var/lib/holdfast/locks.db
  holdfast init-store --backend postgres://admin@db/app`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := a.open(cmd.Context())
			if err != nil {
				return err
			}
			name := b.Capabilities().Name
			if m, ok := b.(interface {
				Migrate(ctx context.Context) error
			}); ok {
				err = m.Migrate(cmd.Context())
			}
			if errClose := b.Close(); err == nil && errClose != nil {
				err = fmt.Errorf("close %s: %w", name, errClose)
			}
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"backend": name, "ready": true})
			}
			return a.line(a.stdout, "%s is ready", name)
		},
	}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return a.printJSON(map[string]string{"version": version(), "revision": revision(), "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH})
			}
			_, err := fmt.Fprintln(a.stdout, versionText())
			return err
		},
	}
}

// versionText returns the version, the commit and the platform in a line.
func versionText() string {
	return fmt.Sprintf("holdfast %s (%s, %s %s/%s)", version(), revision(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// version returns the version of the command.
func version() string {
	info, _ := debug.ReadBuildInfo()
	return versionOf(info)
}

// versionOf returns the version of the release that the go command built, from a module proxy or at a tag of the
// repository. A build of any other commit, or with changes, is a development version. info may be nil.
func versionOf(info *debug.BuildInfo) string {
	const next = "0.1.0-dev"
	if info == nil {
		return next
	}
	release := regexp.MustCompile(`^v(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)$`).FindStringSubmatch(info.Main.Version)
	if release == nil || regexp.MustCompile(`\d{14}-[0-9a-f]{12}$`).MatchString(release[1]) { // the latter is a pseudo-version
		return next
	}
	return release[1]
}

// commit is the commit from which the command was built, for builds without the repository, such as that of
// deploy/docker/Dockerfile. Only the linker sets it.
//
//nolint:gochecknoglobals // the linker sets it
var commit string

// revision returns the commit from which the command was built, if the go command or the linker was told.
func revision() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return cmp.Or(commit, "unknown")
}
