// Package elector elects a leader among the candidates of a name, on every backend
// that package holdfast has. It uses the public API only: an election is an exclusive
// lock, a term is a grant of it, the number of the term is its fencing token, and the
// candidates are those who wait in line.
//
//	e, err := elector.New(locks, "scheduler", elector.Config{Value: "10.0.0.7:8080"})
//	err = e.Run(ctx, func(ctx context.Context, term *elector.Term) error {
//		return schedule(ctx, term.Token())       // ctx ends before another can lead
//	})
//
// # Who decides
//
// The backend alone: whoever has the lease leads. Nobody is told to lead by an
// observation, and nobody leads because nobody else seems to.
//
//	        Campaign                granted
//	idle ─────────────► candidate ───────────► leader
//	 ▲                   (in line)               │
//	 │                                           ├─ Resign: the next in line leads, one push later
//	 └───────────────────────────────────────────┴─ lost: the context ended before another could lead
//
// # The term
//
// A term ends for its leader when [Term.Context] ends: by a local clock that needs no
// network, before the lease can end on the backend (C9 of the contract). So two terms
// do not overlap in the eyes of those who look at their context, while the clocks'
// rates differ by less than 1 %. The contexts look at the clock when they are asked, so
// that a leader which was paused finds its own over before it does anything else. One
// that looked, was paused past its lease and then writes, and what is on its way
// already, no election can stop: give the token to what it writes to, and let that
// refuse a smaller one (package fence).
//
// The other way round is an operator's break, or a store that lost its data: there the
// next one leads at once, and the one before is told by a push, or by its next renewal.
//
// # Failure
//
// A leader that dies is followed when its lease has run out: after the client's TTL.
// One that shuts down resigns, and the next in line leads one push later, where the
// backend pushes. While the backend is away a candidate waits, and a leader leads on
// until its lease cannot be kept.
package elector
