package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/elector"
)

func (a *app) electCommand() *cobra.Command {
	var o lockOptions
	var once, observe bool
	cmd := &cobra.Command{
		Use:   "elect [flags] NAME [-- COMMAND [ARG...]]",
		Short: "Run a command while leading an election",
		Long: `Join an election as a candidate, and run a command while leading. All candidates of an
election use the same NAME and the same backend. One candidate leads at a time, in the
order in which they joined.

The command is run, supervised and ended as by "holdfast run", with the same environment
variables; HOLDFAST_TOKEN is the number of the term. If the leadership is lost, the
command is ended before another candidate can lead. This process then joins again at the
end of the queue; with --once it exits with status 70 instead. When the command exits, or
a signal ends it, the leadership is released and the next candidate leads.

With --observe and without a command, print the current leader and each change until
interrupted.

Exit status: as for "holdfast run".`,
		Example: `  holdfast elect scheduler -- ./scheduler
  holdfast elect --owner "$HOSTNAME" --note "$IP:8080" api-leader -- ./serve
  holdfast elect --observe --json api-leader`,
		Args: func(cmd *cobra.Command, args []string) error {
			if observe {
				return oneName(cmd, args)
			}
			if dash := cmd.ArgsLenAtDash(); dash != 1 || len(args) < 2 {
				return usageError("elect", "want NAME -- COMMAND [ARG...], or --observe NAME")
			}
			return nil
		},
		ValidArgsFunction: a.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if observe {
				return a.observeElection(cmd.Context(), args[0])
			}
			if once {
				return a.run(cmd.Context(), args[0], args[1:], &o)
			}
			return a.elect(cmd.Context(), args[0], args[1:], &o)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.ttl, "ttl", 30*time.Second, "how long a dead leader keeps the leadership")
	f.StringVar(&o.owner, "owner", "", "name of the candidate, shown to people (default: host:pid)")
	f.StringVar(&o.note, "note", "", "text for observers, such as the leader's address")
	f.BoolVar(&once, "once", false, "exit with status 70 if the leadership is lost")
	f.BoolVar(&observe, "observe", false, "print the current leader and each change")
	cmd.MarkFlagsMutuallyExclusive("once", "observe")
	o.limit, o.permits = 1, 1
	cmd.Annotations = map[string]string{ownSignals: "a signal is passed on to the command"}
	o.addGrace(cmd)
	o.addPassBackend(cmd)
	f.SortFlags = false
	return cmd
}

// elect runs the command while it leads, and joins the election again when the leadership was lost, until the
// command ends by itself.
func (a *app) elect(ctx context.Context, name string, argv []string, o *lockOptions) error {
	client, done, err := a.client(ctx, holdfast.Config{TTL: o.ttl, Owner: o.owner})
	if err != nil {
		return err
	}
	defer done()
	candidate, err := elector.New(client, name, elector.Config{Candidate: o.owner, Value: o.note, Hooks: elector.Hooks{
		Resigned: func(_ context.Context, _ *elector.Term, err error) {
			if err != nil {
				a.warn("%v", err)
			}
		},
	}})
	if err != nil {
		return err
	}
	a.tellScope()
	ctx, in := handleSignals(ctx, func(ctx context.Context) { a.tellHolder(ctx, client, name) })
	defer in.stop()
	return candidate.Run(ctx, func(_ context.Context, term *elector.Term) error {
		defer in.giveBack(ctx)
		err := a.supervise(ctx, term.Lock(), argv, o, in)
		if errors.Is(err, holdfast.ErrLost) {
			a.warn("%v; joining the election again", err)
			return nil
		}
		in.end(cmp.Or[error](err, exitError(exitOK))) // also if the term is lost from here on
		return err
	})
}

func (a *app) observeElection(ctx context.Context, name string) error {
	ctx, stop := interruptible(ctx)
	defer stop()
	c, done, err := a.client(ctx, holdfast.Config{})
	if err != nil {
		return err
	}
	defer done()
	e, err := elector.New(c, name, elector.Config{})
	if err != nil {
		return err
	}
	err = e.Observe(ctx, func(l elector.Leader) { a.printLeader(name, l) })
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (a *app) printLeader(name string, l elector.Leader) {
	switch {
	case a.json && l.Token == 0:
		_ = a.printJSONLine(map[string]any{"election": name, "leader": nil, "at": stamp(time.Now())})
	case a.json:
		_ = a.printJSONLine(map[string]any{
			"election": name, "at": stamp(time.Now()),
			"leader": map[string]any{"owner": l.Candidate, "note": l.Value, "token": uint64(l.Token), "since": stamp(l.Since)},
		})
	case l.Token == 0:
		_ = a.line(a.stdout, "%s  no candidate leads %s", time.Now().Format("15:04:05.000"), name)
	default:
		text := fmt.Sprintf("%s  %s leads %s, term %d  %s", time.Now().Format("15:04:05.000"), l.Candidate, name, l.Token, l.Value)
		_ = a.line(a.stdout, "%s", strings.TrimSpace(text))
	}
}
