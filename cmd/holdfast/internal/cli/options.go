package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast"
)

// lockOptions are the flags of the subcommands that take a lock.
type lockOptions struct {
	ttl             time.Duration
	wait            time.Duration
	waitGiven       bool
	try             bool
	shared          bool
	limit, permits  int
	limitGiven      bool
	owner, note     string
	atLeast, atMost time.Duration
	passBackend     bool
	grace           time.Duration
}

// addPassBackend adds the flag --pass-backend.
func (o *lockOptions) addPassBackend(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.passBackend, "pass-backend", false, "let the command inherit HOLDFAST_BACKEND also if it has a password")
}

// addGrace adds the flag --grace, and the check of it and of the TTL.
func (o *lockOptions) addGrace(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&o.grace, "grace", 0, "time between SIGTERM and SIGKILL when the lease cannot be kept (default: a quarter of the TTL, at most 5s)")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if !cmd.Flags().Changed("grace") {
			o.grace = min(o.ttl/4, 5*time.Second)
		} else if o.grace < 0 {
			return usageError("grace", "%s: must be 0s or more", o.grace)
		}
		if o.ttl <= 0 {
			return usageError("ttl", "%s: must be above 0s", o.ttl)
		}
		if o.grace >= o.ttl/2 {
			return usageError("grace", "%s: must be under half of the TTL, %s", o.grace, o.ttl)
		}
		return nil
	}
}

func (o *lockOptions) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.DurationVar(&o.ttl, "ttl", 30*time.Second, "how long the lease lasts without a renewal")
	f.DurationVar(&o.wait, "wait", 0, "how long to wait in the queue, and for a store that is unavailable (default: in the queue without limit, for a store that never answered 10s)")
	f.BoolVar(&o.try, "try", false, "do not wait if the lock is held")
	f.BoolVar(&o.shared, "shared", false, "share the lock with other shared holders, such as readers")
	f.IntVar(&o.limit, "limit", 1, "how many permits of the lock can be held at the same time")
	f.IntVar(&o.permits, "permits", 1, "how many permits to acquire")
	f.StringVar(&o.owner, "owner", "", "name of the holder, shown to people (default: host:pid)")
	f.StringVar(&o.note, "note", "", "free text, shown to people")
	f.DurationVar(&o.atLeast, "at-least", 0, "hold the lock at least this long, even if the command ends sooner")
	f.DurationVar(&o.atMost, "at-most", 0, "hold the lock no longer than this")
	cmd.MarkFlagsMutuallyExclusive("try", "wait")
	f.SortFlags = false
	cmd.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		o.waitGiven, o.limitGiven = cmd.Flags().Changed("wait"), cmd.Flags().Changed("limit")
	}
}

func (o *lockOptions) options() ([]holdfast.Option, error) {
	if o.ttl <= 0 {
		return nil, usageError("ttl", "%s: must be above 0", o.ttl)
	}
	opts := []holdfast.Option{holdfast.TTL(o.ttl), holdfast.Permits(o.permits)}
	if o.limitGiven { // without it, holders that share the lock are readers, in any number
		opts = append(opts, holdfast.Limit(o.limit))
	}
	if o.shared {
		opts = append(opts, holdfast.Shared())
	}
	if o.owner != "" {
		opts = append(opts, holdfast.Owner(o.owner))
	}
	if o.note != "" {
		opts = append(opts, holdfast.Note(o.note))
	}
	if o.atLeast != 0 {
		opts = append(opts, holdfast.AtLeast(o.atLeast))
	}
	if o.atMost != 0 {
		opts = append(opts, holdfast.AtMost(o.atMost))
	}
	return opts, nil
}

// waits returns the option for how long to wait, if a flag sets it. After clientFor, o.wait is the
// rest of the wait.
func (o *lockOptions) waits() []holdfast.Option {
	switch {
	case o.try:
		return []holdfast.Option{holdfast.Wait(0)}
	case o.waitGiven:
		return []holdfast.Option{holdfast.Wait(o.wait)}
	}
	return nil
}
