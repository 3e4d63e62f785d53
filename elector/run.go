package elector

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-io/holdfast"
)

// Run stands in the election and calls lead each time the elector leads, until ctx ends
// or lead fails. The context that lead gets ends when the term does, and with ctx; its Err
// looks at the clock, as that of [Term.Context] does. lead has to return soon after that,
// and Run waits for it: it is never called while it runs.
//
// When lead returns, or ctx ends, the term is resigned, and the next in line leads. After
// a nil error, and after a term that was lost, Run stands again, behind those who wait.
//
// Errors: the cause of ctx; what lead returned, unless the term was lost; those of
// holdfast.Client.Acquire, of which ErrUnavailable is not one; ErrRunning.
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

// serve leads one term. The error is nil when the elector should stand again.
func (e *Elector) serve(ctx context.Context, term *Term, lead func(context.Context, *Term) error) error {
	defer term.lock.Release(context.WithoutCancel(ctx)) //nolint:errcheck // for a panic; else it was released before
	if f := e.cfg.Events.Gained; f != nil {
		f(term)
	}
	err := during(ctx, term, lead)
	if lost := term.Err(); lost != nil {
		return e.over(ctx, term, lost, err)
	}
	done, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignPatience)
	defer cancel()
	resigned := term.Resign(done)
	if f := e.cfg.Events.Resigned; f != nil {
		f(term, resigned)
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

// termContext is what lead gets. A leader that was stopped and goes on may look at its
// context before any timer has fired: Err looks at the clock.
type termContext struct {
	context.Context //nolint:containedctx // this is a context
	term            *Term
	end             context.CancelCauseFunc
}

// Err is nil while the term lasts and the context of Run does.
func (x *termContext) Err() error {
	if err := x.Context.Err(); err != nil {
		return err
	}
	if err := x.term.Err(); err != nil {
		x.end(err)
	}
	return x.Context.Err()
}

// over is for a term that ended while lead ran: it was lost, or lead resigned it.
func (e *Elector) over(ctx context.Context, term *Term, why, err error) error {
	if errors.Is(why, holdfast.ErrReleased) {
		if f := e.cfg.Events.Resigned; f != nil {
			f(term, nil)
		}
	} else {
		if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, holdfast.ErrLost) {
			why = errors.Join(why, err)
		}
		if f := e.cfg.Events.Lost; f != nil {
			f(term, why)
		}
		err = nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, holdfast.ErrReleased) {
		return nil // what it made of its context's end
	}
	return err
}

// rest waits for about d.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
