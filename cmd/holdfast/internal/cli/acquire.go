package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

// leaseOut is what acquire and renew print.
type leaseOut struct {
	Name      string `json:"name"`
	Lease     string `json:"lease"`
	Token     uint64 `json:"token"`
	Owner     string `json:"owner,omitempty"`
	TTL       string `json:"ttl"`
	ExpiresAt string `json:"expires_at"`
}

func (a *app) acquireCommand() *cobra.Command {
	var o lockOptions
	var lease string
	var export bool
	cmd := &cobra.Command{
		Use:   "acquire [flags] NAME",
		Short: "Acquire a lock that outlives this command",
		Long: `Acquire a lock that stays held after this command exits, until its TTL has elapsed. Renew
the lease with "holdfast renew" and release it with "holdfast release".

With --export, print shell commands that set HOLDFAST_LOCK, HOLDFAST_LEASE and
HOLDFAST_TOKEN. Without arguments, renew and release use these variables. If the lock was
not acquired, print commands that end a script with the exit status of this command, and
that interrupt an interactive shell. A holdfast that was killed prints nothing, so a script
should check the exit status too, as in the example.`,
		Example: `  lease=$(holdfast acquire --ttl 2h deploy --export) || exit
  eval "$lease"
  ./deploy.sh && holdfast release
  holdfast acquire --try flat-12 --owner maria --note "visit at 3" --ttl 2h --json`,
		Args:              oneName,
		ValidArgsFunction: a.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts, err := o.options()
			if err != nil {
				return err
			}
			if lease != "" {
				opts = append(opts, holdfast.WithLease(holdfast.LeaseID(lease)))
			}
			return a.acquire(cmd.Context(), args[0], append(opts, holdfast.NoRenew()), &o, export)
		},
	}
	o.add(cmd)
	cmd.Flags().StringVar(&lease, "lease", "", "lease ID of your own: a retry with it is the same acquisition")
	cmd.Flags().BoolVar(&export, "export", false, "print shell commands that set the environment")
	_ = cmd.Flags().MarkHidden("at-most")
	return cmd
}

func (a *app) acquire(ctx context.Context, name string, opts []holdfast.Option, o *lockOptions, export bool) error {
	c, done, err := a.clientFor(ctx, o, holdfast.Config{Owner: o.owner})
	if err != nil {
		return err
	}
	defer done()
	opts = append(opts, o.waits()...) // the rest of the wait
	surviveUnread()
	lock, err := c.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	if err := a.printGrant(lock, o, export); err != nil {
		return errors.Join(err, lock.Release(ctx)) // no other process knows of it
	}
	_, err = lock.Detach()
	return err
}

func (a *app) printGrant(lock *holdfast.Lock, o *lockOptions, export bool) error {
	out := leaseOut{
		Name: lock.Name(), Lease: string(lock.Lease().ID), Token: uint64(lock.Token()), Owner: lock.Owner(),
		TTL: o.ttl.String(), ExpiresAt: stamp(time.Now().Add(time.Until(lock.Deadline()))),
	}
	if export {
		// For a shell that evaluates it. Nothing in it comes from a server: the name is an
		// argument of this command, and the lease ID was made here.
		_, err := fmt.Fprintf(raw(a.stdout), "export HOLDFAST_LOCK=%s HOLDFAST_LEASE=%s HOLDFAST_TOKEN=%d\n", shellQuote(out.Name), shellQuote(out.Lease), out.Token)
		return err
	}
	return a.printLease(out)
}

func (a *app) printLease(out leaseOut) error {
	if a.json {
		return a.printJSON(out)
	}
	return a.table([]string{"LOCK", "LEASE", "TOKEN", "UNTIL"}, [][]string{{out.Name, out.Lease, strconv.FormatUint(out.Token, 10), out.ExpiresAt}})
}

// stopShell is what --export prints in place of a lease: a shell that evaluated nothing would continue without the lock.
// An interactive shell is not ended: SIGINT stops its functions and loops, and drops the rest of the line. In a subshell
// of it, $$ is the interactive shell, and exit ends the subshell.
const stopShell = "case $- in *i*) kill -INT $$;; esac; exit %d\n"

// wantsExport reports whether a command line has --export, also one that cannot be parsed.
func wantsExport(args []string) bool {
	for _, arg := range args {
		if arg == "--" {
			return false // the rest is the command of "holdfast run"
		}
		if arg == "--export" || arg == "--export=true" {
			return true
		}
	}
	return false
}

func (a *app) renewCommand() *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "renew [NAME LEASE]",
		Short: "Renew a lease that acquire obtained",
		Long: `Renew a lease: it then expires after the TTL, counted from now. Without --ttl it keeps the
TTL that it has. Without arguments, HOLDFAST_LOCK and HOLDFAST_LEASE name the lease. Exit status
70 means that the lease was lost.`,
		Example: `  holdfast renew deploy 5LKRLBM5GCIZUJ3XQHEUVTTZVE --ttl 10m`,
		Args:    twoOrNone("NAME LEASE"),
		RunE: a.withLease(func(ctx context.Context, b backend.Backend, ref holdfast.Lease) error {
			asked := time.Now()
			res, err := b.Renew(ctx, backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: ref.Name, Lease: ref.ID, TTL: ttl}}})
			if err == nil && len(res.Leases) != 1 {
				err = holdfast.ErrUnavailable
			}
			if err == nil {
				err = res.Leases[0].Err
			}
			if err != nil {
				return fmt.Errorf("renew %q on %s: %w", ref.Name, b.Capabilities().Name, err)
			}
			got := res.Leases[0]
			return a.printLease(leaseOut{
				Name: ref.Name, Lease: string(ref.ID), Token: uint64(got.Token), TTL: cmp.Or(ttl, got.Left.Round(time.Millisecond)).String(), ExpiresAt: stamp(asked.Add(got.Left)),
			})
		}),
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long the lease lasts from now (default: the TTL that it has)")
	return cmd
}

func (a *app) releaseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "release [NAME LEASE]",
		Short: "Release a lease that acquire obtained",
		Long: `Release a lease. Without arguments, HOLDFAST_LOCK and HOLDFAST_LEASE name it. Exit
status 70 means that the lease was lost before; nothing was changed.`,
		Example: `  holdfast release deploy 5LKRLBM5GCIZUJ3XQHEUVTTZVE`,
		Args:    twoOrNone("NAME LEASE"),
		RunE: a.withLease(func(ctx context.Context, b backend.Backend, ref holdfast.Lease) error {
			if err := b.Release(ctx, backend.ReleaseRequest{Name: ref.Name, Lease: ref.ID}); err != nil {
				return fmt.Errorf("release %q on %s: %w", ref.Name, b.Capabilities().Name, err)
			}
			if a.json {
				return a.printJSON(map[string]any{"name": ref.Name, "lease": ref.ID, "released": true})
			}
			return nil
		}),
	}
}

// withLease returns a command's function that calls do with the backend and the lease that the arguments,
// or the environment, name.
func (a *app) withLease(do func(ctx context.Context, b backend.Backend, ref holdfast.Lease) error) func(cmd *cobra.Command, args []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ref, err := leaseArgs(args)
		if err != nil {
			return err
		}
		b, err := a.open(cmd.Context())
		if err != nil {
			return err
		}
		defer b.Close() //nolint:errcheck // the answer is complete
		ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
		defer cancel()
		return do(ctx, b, ref)
	}
}

// leaseArgs returns the lease that the arguments, or the environment, name.
func leaseArgs(args []string) (holdfast.Lease, error) {
	if len(args) == 0 {
		args = []string{os.Getenv("HOLDFAST_LOCK"), os.Getenv("HOLDFAST_LEASE")}
		if args[0] == "" || args[1] == "" {
			return holdfast.Lease{}, usageError("lease", "want NAME LEASE, or HOLDFAST_LOCK and HOLDFAST_LEASE in the environment")
		}
	}
	l := holdfast.Lease{Name: args[0], ID: holdfast.LeaseID(args[1])}
	return l, errors.Join(backend.ValidateName(l.Name), backend.ValidateLeaseID(l.ID))
}

func oneName(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError("arguments", "want NAME, got %d", len(args))
	}
	return nil
}

func twoOrNone(want string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 0 && len(args) != 2 {
			return usageError("arguments", "want %s or nothing, got %d", want, len(args))
		}
		return nil
	}
}

// shellQuote quotes s as one word for a POSIX shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
