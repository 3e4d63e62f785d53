package elector

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// ErrNoLeader means that no candidate leads at the moment.
var ErrNoLeader = errors.New("no candidate leads")

// Leader is the leader that the backend reported. The term may have ended since.
type Leader struct {
	Candidate string // Config.Candidate of the leader
	Value     string // Config.Value of the leader
	// Token is the number of the term; 0: no leader.
	Token fence.Token
	Since time.Time // by the backend's wall clock
	// Self: it is this elector.
	Self bool
}

// Candidate is a waiter in the election's queue.
type Candidate struct {
	Candidate string
	Value     string
	Since     time.Time // by the backend's wall clock
}

// Leader returns the current leader. Candidates and observers may call it.
//
// Errors: ErrNoLeader; those of holdfast.Client.Inspect.
func (e *Elector) Leader(ctx context.Context) (Leader, error) {
	info, err := e.locks.Inspect(ctx, e.name)
	if err != nil {
		return Leader{}, err
	}
	l := e.leaderOf(info)
	if l.Token == 0 {
		return Leader{}, ErrNoLeader
	}
	return l, nil
}

// Candidates returns the waiters in the queue. The first will be the next leader, if the backend is
// first come, first served.
//
// Errors: those of holdfast.Client.Inspect.
func (e *Elector) Candidates(ctx context.Context) ([]Candidate, error) {
	info, err := e.locks.Inspect(ctx, e.name)
	if err != nil {
		return nil, err
	}
	cs := make([]Candidate, 0, len(info.Waiters))
	for _, w := range info.Waiters {
		cs = append(cs, Candidate{Candidate: w.Owner, Value: w.Note, Since: w.Since})
	}
	return cs, nil
}

func (e *Elector) leaderOf(info holdfast.LockInfo) Leader {
	if len(info.Holders) == 0 {
		return Leader{}
	}
	h := info.Holders[0]
	if h.Mode != (holdfast.Holder{}).Mode {
		return Leader{} // a shared holder keeps others from leading, but does not lead
	}
	t := e.Term()
	return Leader{
		Candidate: h.Owner, Value: h.Note, Token: h.Token, Since: h.Since,
		Self: t != nil && t.lock.Lease().ID == h.Lease,
	}
}

const (
	// observeEvery is the interval between reads of a backend without events.
	observeEvery = 2 * time.Second
	// observeAtLeast is the interval between reads of a backend with events, in case an event was
	// lost.
	observeAtLeast = time.Minute
)

// Observe calls deliver with the current leader, and then whenever the leader changes or there is
// none (a Leader with Token 0), until ctx ends. When leaders change quickly, some are skipped, but
// never the newest. Terms are delivered in order: a term older than the last one delivered is
// skipped. While the backend is unavailable nothing is delivered.
//
// Observe reads from the backend when an event says so, or about every two seconds if the backend
// has no events.
//
// Errors: the cause of ctx, ErrInvalid, ErrUnsupported, ErrClosed of package holdfast.
func (e *Elector) Observe(ctx context.Context, deliver func(Leader)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	news := make(chan struct{}, 1) // never closed: something has happened
	every := observeEvery
	watched := make(chan struct{})
	if e.locks.Capabilities().Watch {
		every = observeAtLeast
		go func() {
			defer close(watched)
			cancel(e.watch(ctx, news))
		}()
	} else {
		close(watched)
	}
	defer func() { cancel(nil); <-watched }()
	current := fence.MaxToken // token of the leader delivered last; none so far
	var newest fence.Token
	for {
		info, err := e.locks.Inspect(ctx, e.name)
		pause := every
		switch {
		case err == nil:
			// Where several servers answer, an answer can be older than the one before it. An older
			// term is not delivered, but the newest one may be delivered again.
			now := e.leaderOf(info)
			if now.Token != current && (now.Token >= newest || now.Token == 0) {
				deliver(now)
				current, newest = now.Token, max(newest, now.Token)
			}
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, holdfast.ErrUnavailable):
			pause = observeEvery
		default:
			return err
		}
		if err := await(ctx, news, pause); err != nil {
			return err
		}
	}
}

// watch sends on news when something has happened to the election, until ctx ends.
func (e *Elector) watch(ctx context.Context, news chan<- struct{}) error {
	for ev, err := range e.locks.Watch(ctx, e.name) {
		if err != nil {
			return err
		}
		if ev.Name != "" && ev.Name != e.name {
			continue // another lock whose name begins with this one
		}
		select {
		case news <- struct{}{}:
		default:
		}
	}
	return nil
}

// await waits for news, but no longer than about d.
func await(ctx context.Context, news <-chan struct{}, d time.Duration) error {
	retry.Until(retry.About(d), ctx.Done(), news)
	return context.Cause(ctx)
}
