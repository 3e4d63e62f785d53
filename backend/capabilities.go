package backend

import "time"

// Capabilities describes what a backend can do. Tests check that a claimed capability works, and
// that an unclaimed one is refused.
type Capabilities struct {
	// Name of the backend, for errors, logs and metrics: "redis".
	Name string
	// Sessions: one renewal keeps all leases of a client.
	Sessions bool
	// Timed: timed leases, each with a TTL of its own, which outlive the process that acquired them.
	// At least one of Sessions and Timed is true.
	Timed bool
	// Bound: a session is tied to the connection of the backend value that opened it, and ends with
	// it. Close ends it, and no other value can take it over.
	Bound bool
	// Tied: the leases of a session end as soon as the connection that it is bound to breaks, for
	// whatever reason, and not only with the TTL. C4 and C9 hold for as long as the connection
	// exists. The holder learns of the loss as soon as this side sees the end of the connection.
	Tied bool
	// Shared leases without a limit.
	Shared bool
	// Permits: shared leases with a limit.
	Permits bool
	// FIFO: C3 holds. Otherwise the order of waiters is not defined.
	FIFO bool
	// Push: a hand-over reaches the waiter without polling.
	Push bool
	// LossPush: the holder learns of a loss without waiting for its next renewal.
	LossPush bool
	// Watch: Backend.Watch works.
	Watch bool
	// Durable: leases and tokens survive a restart of the store.
	Durable bool
	// TokenKind is the source of the tokens: a "revision" of the whole store; a "counter"; the "clock",
	// a counter that also keeps up with the store's clock, so that tokens increase after the data was
	// lost or restored from an old copy; or "votes", such counters of several stores, which do not order
	// grants that are in progress at the same time.
	TokenKind string
	// MinTTL and MaxTTL bound the TTLs that may be requested.
	MinTTL, MaxTTL time.Duration
	// ExpiryLag bounds how much later than its TTL a lease becomes free.
	ExpiryLag time.Duration
	// Doubles: after its holder's process has died, a lease may live for twice its TTL plus
	// ExpiryLag.
	Doubles bool
	// MaxRenew is how many timed leases one Renew may name; 0: any number.
	MaxRenew int
}
