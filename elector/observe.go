package elector

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/fence"
)

// ErrNoLeader says that nobody leads at the moment.
var ErrNoLeader = errors.New("nobody leads")

// Leader is who leads, as the backend had it when it was asked: it may be over by now.
type Leader struct {
	Candidate string // Config.Candidate of the leader
	Value     string // Config.Value of the leader
	// Token is the number of the term; 0: nobody leads.
	Token fence.Token
	Since time.Time // by the backend's wall clock
	// Self: it is this elector.
	Self bool
}

// Candidate is who waits for the leader's end.
type Candidate struct {
	Candidate string
	Value     string
	Since     time.Time // by the backend's wall clock
}

// Leader tells who leads. Candidates and observers may call it.
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

// Candidates tells who waits in line: the first will be the next leader where the
// backend is first come, first served.
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
		return Leader{} // who shares the lock keeps others from leading, and does not lead
	}
	t := e.Term()
	return Leader{
		Candidate: h.Owner, Value: h.Note, Token: h.Token, Since: h.Since,
		Self: t != nil && t.lock.Lease().ID == h.Lease,
	}
}

const (
	// observeEvery is how often the backend is asked where it has no events.
	observeEvery = 2 * time.Second
	// observeAtLeast is how often it is asked where it has: for an event that nobody
	// got, and never more than that.
	observeAtLeast = time.Minute
)

// Observe calls deliver with the leader as it is, and then whenever another leads or
// nobody does (a Leader with Token 0), until ctx ends. Where leaders change quickly some
// are left out, but never the newest. Terms are delivered in order: what is older than
// what was delivered is not. While the backend is away nothing is delivered.
//
// It asks the backend when an event says so, and every two seconds where the backend
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
	current := fence.MaxToken // of the leader that was delivered last; none was
	var newest fence.Token
	for {
		info, err := e.locks.Inspect(ctx, e.name)
		pause := every
		switch {
		case err == nil:
			// An answer can be older than the one before it, where several servers give
			// them: an older term is not delivered, and the newest one may be again.
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

// watch reports on news that something has happened to the election, until ctx ends.
func (e *Elector) watch(ctx context.Context, news chan<- struct{}) error {
	return e.locks.Watch(ctx, e.name, func(ev holdfast.Event) {
		if ev.Name != "" && ev.Name != e.name {
			return // another one whose name begins the same
		}
		select {
		case news <- struct{}{}:
		default:
		}
	})
}

// await waits for news, and for no longer than about d.
func await(ctx context.Context, news <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-news:
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
