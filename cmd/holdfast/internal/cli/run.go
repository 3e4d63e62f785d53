package cli

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast"
)

func (a *app) runCommand() *cobra.Command {
	var o lockOptions
	cmd := &cobra.Command{
		Use:   "run [flags] NAME -- COMMAND [ARG...]",
		Short: "Run a command under a lock",
		Long: `Run a command while holding a lock, and release the lock when the command has ended.

The lease is renewed while the command runs. If it cannot be kept, the command's process
group gets SIGTERM early enough (see --grace), and SIGKILL before the lock can be granted
to another client. A local timer in a separate process does this, even if the backend
hangs or holdfast itself is stopped or killed.

The command's environment has HOLDFAST_LOCK, HOLDFAST_TOKEN and HOLDFAST_LEASE. Send the
token with every write, and let the resource refuse a smaller one. It has HOLDFAST_BACKEND
only if that has no password, or with --pass-backend.

Signals are passed on to the command. It runs in its own process group, in the
foreground if there is a terminal. Ctrl-Z, fg and bg work as for any command, but a
stopped holdfast renews nothing, and the command is killed when the lease ends. Children
that are still running when the command exits are left alone, as by a shell, and the lock
is released. A child that starts its own session (setsid), and a process that runs as
another user, cannot be killed and may outlive the lease: send the token with its writes,
and write "sudo holdfast run NAME -- COMMAND" with sudo before holdfast.

If holdfast and the separate process are killed at once, the kernel kills the command on
Linux, but not its children; on macOS and the BSDs neither. As the first process of a
container, holdfast reaps orphans, and no process of the container outlives it.
On OpenBSD and NetBSD there is no local file: give --backend.

Exit status: the command's own, or 128 plus the signal that ended it; 75 if the lock could
not be acquired, 74 if the backend was unavailable, 70 if the lock was lost, 64 for bad
usage, 126 and 127 if the command cannot be run or does not exist.`,
		Example: `  holdfast run nightly-report -- ./report.sh
  holdfast run --try backup -- rsync -a /srv /backup      # not if it runs already
  holdfast run --wait 1m --limit 3 downloads -- ./fetch.sh   # at most three at the same time
  holdfast run --shared dataset -- ./read.sh               # together with other readers
  holdfast run --at-least 50s cron-job -- ./job.sh         # once in the fleet, although clocks differ`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash != 1 || len(args) < 2 {
				return usageError("run", "want NAME -- COMMAND [ARG...]")
			}
			return nil
		},
		ValidArgsFunction: a.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.run(cmd.Context(), args[0], args[1:], &o)
		},
	}
	o.add(cmd)
	cmd.Annotations = map[string]string{ownSignals: "a signal is passed on to the command"}
	o.addGrace(cmd)
	o.addPassBackend(cmd)
	return cmd
}

// run acquires the lock, runs the command and releases the lock.
func (a *app) run(ctx context.Context, name string, argv []string, o *lockOptions) error {
	opts, err := o.options()
	if err != nil {
		return err
	}
	client, done, err := a.clientFor(ctx, o, holdfast.Config{TTL: o.ttl, Owner: o.owner})
	if err != nil {
		return err
	}
	defer done()
	a.tellScope()
	ctx, in := handleSignals(ctx, func(ctx context.Context) { a.tellHolder(ctx, client, name) })
	defer in.stop()
	lock, err := client.Acquire(ctx, name, append(opts, o.waits()...)...) // the rest of the wait
	if err != nil {
		return err
	}
	err = a.supervise(ctx, lock, argv, o, in)
	if lock.Err() != nil {
		return err // there is nothing to release
	}
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := lock.Release(release); err != nil {
		a.warn("%v", err)
	}
	return err
}

// tellHolder reports which holder the command waits for.
func (a *app) tellHolder(ctx context.Context, c *holdfast.Client, name string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second) // signals are not handled during this call
	defer cancel()
	info, err := c.Inspect(ctx, name)
	if err != nil || len(info.Holders) == 0 {
		return
	}
	h := info.Holders[0]
	a.warn("waiting for %q, held by %s since %s", name, cmp.Or(h.Owner, "a client without an owner"), h.Since.Local().Format(time.TimeOnly))
}
