// Package elector elects a leader among the candidates of a name, on every backend of package
// holdfast. It uses the public API only: an election is an exclusive lock, a term is a grant of it,
// the number of the term is its fencing token, and the candidates are the waiters in the queue.
//
//	e, err := elector.New(locks, "scheduler", elector.Config{Value: "10.0.0.7:8080"})
//	err = e.Run(ctx, func(ctx context.Context, term *elector.Term) error {
//		return schedule(ctx, term.Token())       // ctx ends before another can lead
//	})
//
// # Who decides
//
// The backend alone: the holder of the lease leads. No candidate becomes leader because of an
// observation, or because no other candidate seems to lead.
//
//	        Campaign                granted
//	idle ─────────────► candidate ───────────► leader
//	 ▲                  (in the queue)           │
//	 │                                           ├─ Resign: the next in the queue leads, one push later
//	 └───────────────────────────────────────────┴─ lost: the context ended before another could lead
//
// # The term
//
// A term ends for its leader when [Term.Context] ends: by a local clock that needs no network,
// before the lease can end on the backend (C9 of the contract). So for leaders that check their
// context two terms do not overlap, while the clocks' rates differ by less than 1 %. The contexts
// read the clock whenever they are checked, so that a leader that was paused finds its own term
// ended before it does anything else. No election can stop a leader that checked its context, was
// paused past its lease and then writes, or a write that is already on its way. So pass the token
// to the resource that the leader writes to, and let the resource refuse a smaller one (package
// fence).
//
// The exceptions are an operator's break and a store that lost its data: there the next candidate
// leads immediately, and the previous leader learns it by a push, or by its next renewal.
//
// # Failure
//
// When a leader dies, the next one follows when its lease has expired: after the client's TTL. When
// a leader shuts down, it resigns, and the next in the queue leads one push later, where the
// backend pushes. While the backend is unavailable a candidate waits, and a leader continues to
// lead until its lease cannot be kept.
package elector
