// Package holdfast provides distributed locks with one contract on every backend: exclusive, shared
// and n-permit locks, granted first come, first served. Every grant carries a fencing token, and a
// holder learns in time that it has lost its lock. [Client.Capabilities] reports what the backend
// can and cannot do.
//
//	locks, err := holdfast.New(b, holdfast.Config{})
//	lock, err := locks.Acquire(ctx, "order:123")
//	if err != nil { ... }
//	defer lock.Release(ctx)
//	charge(lock.Context(), lock.Token())
//
// # What is promised
//
// A backend grants a lock to one exclusive lease at a time, or to shared leases within the limit. A
// holder's [Lock.Context] ends before its lease can end on the backend, whatever the network does.
// The deadline is counted on the local monotonic clock, from before the last acknowledged request
// left, with a margin of 1 % of the TTL and 2 ms. On Linux it includes time that the machine was
// suspended; elsewhere it does so where Go's monotonic clock does.
//
// No lock service can stop a process that is paused past its lease, or a packet that is already on
// its way. Pass [Lock.Token] to the resource, and let the resource refuse a token smaller than the
// greatest it has seen. Then a late write does no harm.
//
// # Liveness
//
// A client keeps one session on the backend. One request renews the session and every lease of it,
// however many there are. A lease with a TTL of its own ([TTL], [NoRenew], [AtLeast]) is a timed
// lease, and so is every lease on a backend without sessions. Timed leases are renewed together
// too.
//
// All methods of all types are safe for concurrent use.
package holdfast
