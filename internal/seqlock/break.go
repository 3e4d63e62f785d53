package seqlock

import (
	"context"
	"math"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// Victim is a holder as the first read found it, with its entry in the store.
type Victim[E any] struct {
	Entry  E
	Holder backend.Holder
}

// Outcome is what an attempt to evict victims has done.
type Outcome int

// The outcomes of an attempt.
const (
	// Nothing: the store has changed nothing.
	Nothing Outcome = iota
	// Moved: the store has changed nothing, because a victim has left or a session was notified by
	// another break. Another attempt may succeed.
	Moved
	// Done: the store has deleted the entries of all victims of the attempt.
	Done
	// Unknown: the store may have done it.
	Unknown
)

// Evictor is a store from which holders of one lock are evicted.
type Evictor[E any] interface {
	// Holders reads the present holders.
	Holders(ctx context.Context) ([]Victim[E], error)
	// Stamp makes a write that changes no lock. It returns a token that is greater than those of all
	// earlier grants, and not greater than those of all later ones.
	Stamp(ctx context.Context) (fence.Token, error)
	// Evict deletes the entries of the first victims, as many as fit into one transaction, and
	// notifies their sessions in it. It returns how many those are: at least one. The error is nil only
	// if the outcome is Done or Moved.
	Evict(ctx context.Context, victims []Victim[E]) (int, Outcome, error)
}

// Break takes the lock from the holders that req names. The first read fixes the victims: a lease granted later
// is not among them. The token is the one after the greatest of theirs, because the store counts its
// changes, and every later grant has that token or a greater one. If there are no holders, a write of
// its own returns the token, and a lease granted before that write is a victim.
//
// If the victims do not fit into one transaction, they lose the lock in several, the oldest first.
// Each transaction keeps out the waiters that cannot share the lock with the rest. An error goes through fail, the one of
// the named backend, with changes set if a transaction has changed something, or may have. Break is never
// retried then, because a retry could evict a later holder: see backend.PartDone.
func Break[E any](
	ctx context.Context, name string, store Evictor[E], req *backend.BreakRequest,
	fail func(ctx context.Context, op string, err error, changes bool) error,
) (backend.BreakResult, error) {
	var res backend.BreakResult
	rest, err := victims(ctx, store, req, math.MaxUint64)
	if err == nil && len(rest) == 0 {
		if res.Token, err = store.Stamp(ctx); err == nil {
			rest, err = victims(ctx, store, req, res.Token)
		}
	}
	if len(rest) > 0 {
		res.Token = 0 // the next grant may be to a waiter that is older than the write
	}
	for _, v := range rest {
		res.Token = max(res.Token, v.Holder.Token+1)
	}
	begun := false
	for err == nil && len(rest) > 0 {
		var n int
		var outcome Outcome
		n, outcome, err = store.Evict(ctx, rest)
		begun = begun || outcome == Done || outcome == Unknown
		switch outcome {
		case Done:
			for _, v := range rest[:n] {
				res.Broken = append(res.Broken, v.Holder)
			}
			rest = rest[n:]
		case Moved: // those of them that are still there: every later grant has res.Token or a greater one
			rest, err = victims(ctx, store, req, res.Token)
		case Nothing, Unknown:
		}
	}
	if err == nil {
		return res, nil
	}
	err = fail(ctx, opBreak, err, begun)
	if begun {
		err = backend.PartDone(name, opBreak, err)
	}
	return backend.BreakResult{}, err
}

// victims reads the holders that req names and whose tokens are below the given one.
func victims[E any](ctx context.Context, store Evictor[E], req *backend.BreakRequest, below fence.Token) ([]Victim[E], error) {
	all, err := store.Holders(ctx)
	if err != nil {
		return nil, err
	}
	var some []Victim[E]
	for _, v := range all {
		if v.Holder.Token < below && req.Takes(v.Holder.Lease) {
			some = append(some, v)
		}
	}
	return some, nil
}
