// Package holdfast is distributed locking with one contract on every backend:
// exclusive, shared and n-permit locks, first come first served, a fencing token
// with every grant, and a holder that knows in time when it has lost.
//
//	locks, err := holdfast.New(b, holdfast.Config{})
//	lock, err := locks.Acquire(ctx, "order:123")
//	if err != nil { ... }
//	defer lock.Release(ctx)
//	charge(lock.Context(), lock.Token())
//
// # What is promised
//
// The backend gives a lock to one exclusive lease at a time, or to shared leases
// within the limit. A holder's [Lock.Context] ends before its lease can end on
// the backend, whatever the network does. It is counted on the local monotonic
// clock from before the last acknowledged request left, with a margin of 1 % of
// the TTL and 2 ms. On Linux it includes time that the machine was suspended;
// elsewhere it does where Go's monotonic clock does.
//
// No lock service can stop a process that is paused past its lease, nor a packet
// that is already on its way. Give [Lock.Token] to the resource and let it refuse
// a smaller token than the greatest it has seen: then a late write does no harm.
//
// # Liveness
//
// A client keeps one session on the backend. One request renews it, and with it
// every lease of the client, however many there are. A lease with a TTL of its
// own ([TTL], [NoRenew], [AtLeast]), and every lease on a backend without
// sessions, is a timed lease; those are renewed together too.
//
// All methods of all types may be called at once from many goroutines.
package holdfast
