package seqlock

import (
	"context"

	"github.com/holdfast-io/holdfast/backend"
)

// mostChecks is how many of the entries before it a request that leaves checks: a transaction of Consul
// has at most 64 operations.
const mostChecks = 60

// Describer describes holders.
type Describer[E Entry] interface {
	Describe(ctx context.Context, holders Queue[E]) ([]backend.Holder, error)
}

// Place is the place of an acquire in the queue.
type Place[E Entry] interface {
	Describer[E]

	// Read reads the queue.
	Read(ctx context.Context) (Queue[E], error)
	// Check returns an error if the entry at the index is not the one of the acquire. A negative index
	// means that the lease has none.
	Check(ctx context.Context, q Queue[E], i int) error
	// Leave deletes the entry of the acquire if all the others exist, in one transaction, and reports
	// whether they did. The lease has no entry then.
	Leave(ctx context.Context, others []E) (bool, error)
	// Wait waits until the lease holds the lock, or the queue may have moved. It reports whether the
	// lease holds the lock; if not, it returns the queue.
	Wait(ctx context.Context, q Queue[E], i int) (Queue[E], bool, error)
}

// Stand returns when the lease of the request holds the lock. The queue was read after the entry was
// made. fresh is set if this request has made it: one that does not wait leaves the place only then.
func Stand[E Entry](ctx context.Context, p Place[E], req *backend.AcquireRequest, q Queue[E], fresh bool) error {
	for held := false; !held; {
		i := q.Find(req.Lease)
		if err := p.Check(ctx, q, i); err != nil {
			return err
		}
		if other := q.CheckLimit(req, i); other != nil {
			if _, err := p.Leave(ctx, nil); err != nil {
				return err // it may stand in the queue still
			}
			return other
		}
		var err error
		switch {
		case i < q.Out:
			return nil
		case req.Wait:
			q, held, err = p.Wait(ctx, q, i)
		case fresh:
			q, err = stepBack(ctx, p, req, q, i)
		default:
			err = Refuse(ctx, p, req, q, i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stepBack leaves the queue that filled up after it was read, and returns the refusal. It does not leave
// if an entry before its own has gone in the meantime, because then its own may hold the lock, and other
// requests have been refused because of it: then it returns the queue.
func stepBack[E Entry](ctx context.Context, p Place[E], req *backend.AcquireRequest, q Queue[E], i int) (Queue[E], error) {
	left, err := p.Leave(ctx, q.All[q.Decisive(i, mostChecks):i])
	switch {
	case err != nil:
		return Queue[E]{}, err
	case left:
		return Queue[E]{}, Refuse(ctx, p, req, q, i)
	}
	return p.Read(ctx)
}

// CheckRoom returns the refusal of a request that does not wait if the queue, in which it has no entry,
// has no room for it: such a request must leave no trace there.
func CheckRoom[E Entry](ctx context.Context, p Place[E], req *backend.AcquireRequest, q Queue[E]) error {
	if req.Wait || q.Admits(req.Claim()) {
		return nil
	}
	return Refuse(ctx, p, req, q, len(q.All))
}

// Refuse returns the error for a request that does not wait and has so many entries before it.
func Refuse[E Entry](ctx context.Context, p Describer[E], req *backend.AcquireRequest, q Queue[E], ahead int) error {
	if err := q.CheckLimit(req, len(q.All)); err != nil {
		return err
	}
	holders, err := p.Describe(ctx, q.First(min(q.Out, backend.MaxHeldHolders)))
	if err != nil {
		return err
	}
	return backend.NewHeldError(req.Name, holders, q.Out, max(0, ahead-q.Out))
}
