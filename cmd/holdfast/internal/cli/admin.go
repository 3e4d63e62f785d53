package cli

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast"
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
	var opts []holdfast.Option
	if lease != "" {
		opts = append(opts, holdfast.WithLease(lease))
	}
	res, err := c.Break(ctx, name, reason, opts...)
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
