package backend

import "time"

// Capabilities is what a backend can do. A capability that is claimed is tested,
// and one that is not is tested to be refused.
type Capabilities struct {
	// Name of the backend, for errors, logs and metrics: "redis".
	Name string
	// Sessions: one renewal keeps all leases of a client.
	Sessions bool
	// Timed: leases with an end of their own, which outlive the process that took
	// them. At least one of Sessions and Timed is true.
	Timed bool
	// Bound: a session is tied to the connection of the backend value that opened it,
	// and ends with that: Close ends it, and no other value can go on with it.
	Bound bool
	// Tied: the leases of a session end at once when the connection that it is bound to
	// breaks, whatever breaks it, and not only with the TTL: C4 and C9 hold for as long as
	// the connection stands. The holder is told as soon as this side sees the end of it.
	Tied bool
	// Shared leases without a limit.
	Shared bool
	// Permits: shared leases with a limit.
	Permits bool
	// Reentrant: leases of one owner join across processes.
	Reentrant bool
	// FIFO: C3 holds. Otherwise waiters are served in no promised order.
	FIFO bool
	// Push: a hand-over reaches the waiter without polling.
	Push bool
	// LossPush: a loss reaches the holder without waiting for its next renewal.
	LossPush bool
	// Watch: Backend.Watch works.
	Watch bool
	// Durable: leases and tokens survive a restart of the store.
	Durable bool
	// TokenKind says where tokens come from: "revision", "counter", "clock".
	TokenKind string
	// MinTTL and MaxTTL bound what may be asked for.
	MinTTL, MaxTTL time.Duration
	// ExpiryLag bounds how much later than its TTL a lease is free.
	ExpiryLag time.Duration
	// Doubles: where the process that holds it died, a lease may live for twice its TTL,
	// and ExpiryLag.
	Doubles bool
	// MaxRenew is how many timed leases one Renew may name; 0: any number.
	MaxRenew int
}
