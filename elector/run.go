package elector

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// Run campaigns and calls lead each time the elector leads, until ctx ends or lead fails. The
// context passed to lead ends when the term does, and with ctx. Its Err reads the clock, as that of
// [Term.Context] does. lead must return soon after its context ended. Run waits for lead, so lead
// is never called concurrently.
//
// When lead returns, or ctx ends, Run resigns the term, and the next in the queue leads. After a
// nil error, and after a lost term, Run campaigns again, at the end of the queue.
//
// Errors: the cause of ctx; what lead returned, unless the term was lost; those of
// holdfast.Client.Acquire, but of ErrUnavailable only ErrRefused; ErrRunning.
func (e *Elector) Run(ctx context.Context, lead func(context.Context, *Term) error) error {
	if lead == nil {
		return &holdfast.InvalidError{Field: "lead", Value: "nil", Bound: "a function"}
	}
	if err := e.stand(); err != nil {
		return err
	}
	defer e.sit()
	for {
		term, err := e.campaign(ctx)
		if err != nil {
			return fmt.Errorf("election %q: %w", e.name, err)
		}
		if err := e.serve(ctx, term, lead); err != nil {
			return err
		}
		if err := rest(ctx, e.cfg.Rest); err != nil {
			return err
		}
	}
}

// serve leads one term. The error is nil when the elector should campaign again.
func (e *Elector) serve(ctx context.Context, term *Term, lead func(context.Context, *Term) error) error {
	defer term.lock.Release(context.WithoutCancel(ctx)) //nolint:errcheck // for a panic; otherwise it was released before
	if f := e.cfg.Hooks.Gained; f != nil {
		f(context.WithoutCancel(ctx), term)
	}
	err := during(ctx, term, lead)
	if lost := term.Err(); lost != nil {
		return e.over(ctx, term, lost, err)
	}
	done, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignPatience)
	defer cancel()
	resigned := term.Resign(done)
	if f := e.cfg.Hooks.Resigned; f != nil {
		f(context.WithoutCancel(ctx), term, resigned)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// during calls lead with a context that ends with the term and with ctx.
func during(ctx context.Context, term *Term, lead func(context.Context, *Term) error) error {
	leading, end := context.WithCancelCause(term.Context())
	defer end(nil)
	defer context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })()
	return lead(&termContext{Context: leading, term: term, end: end}, term)
}

// termContext is the context of lead. A leader that was stopped and resumes may check its context
// before any timer has fired, so Err reads the clock.
type termContext struct {
	context.Context //nolint:containedctx // this is a context
	term            *Term
	end             context.CancelCauseFunc
}

// Err returns nil while both the term and the context of Run last.
func (x *termContext) Err() error {
	if err := x.Context.Err(); err != nil {
		return err
	}
	if err := x.term.Err(); err != nil {
		x.end(err)
	}
	return x.Context.Err()
}

// over handles a term that ended while lead ran: it was lost, or lead resigned it.
func (e *Elector) over(ctx context.Context, term *Term, why, err error) error {
	if errors.Is(why, holdfast.ErrReleased) {
		if f := e.cfg.Hooks.Resigned; f != nil {
			f(context.WithoutCancel(ctx), term, nil)
		}
	} else {
		if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, holdfast.ErrLost) {
			why = errors.Join(why, err)
		}
		if f := e.cfg.Hooks.Lost; f != nil {
			f(context.WithoutCancel(ctx), term, why)
		}
		err = nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, holdfast.ErrReleased) {
		return nil // how lead reported the end of its context
	}
	return err
}

// rest waits for about d.
func rest(ctx context.Context, d time.Duration) error {
	retry.Pause(ctx, retry.About(d))
	return context.Cause(ctx)
}
