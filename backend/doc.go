// Package backend defines the contract between Holdfast and the stores that keep its leases. It
// names no product. The backends are in the folders below it, and backend/backendtest is the suite
// that checks each of them against these rules.
//
// # The contract
//
// The IDs are those of the conformance suite and of docs/guarantees.md.
//
//	C1   The leases held at any time are compatible: one exclusive lease, or
//	     shared leases within the limit. A lease counts until it has expired on
//	     the backend.
//	C2   Tokens of one lock strictly increase in the order of grants, also across
//	     restarts, release, expiry, break, and the deletion of the lock's record.
//	C3   Waiters are granted in the order in which the backend received them. No
//	     waiter is overtaken, so readers never starve a writer, nor the reverse.
//	C4   A lease that is not renewed is free no earlier than its TTL after the
//	     backend received it, and no later than TTL + the backend's stated lag.
//	C5   Only the lease ID renews or releases. A stale one gets ErrLost and
//	     changes nothing. Lost is final: a renewal never creates or revives.
//	C6   The same acquire sent twice under one lease ID yields one grant. A
//	     release sent twice frees the lock once and harms no successor.
//	C7   A waiter that gives up leaves nothing behind. An acquire of unknown
//	     outcome is abandoned in the background until it is known to be gone,
//	     also when its request arrives after that.
//	C8   A waiter that dies delays the queue by no more than its session's TTL. A
//	     lost wake-up costs a timer, never a hang.
//	C9   A holder's context ends before its lease can end on the backend, while
//	     clock rates differ by less than 1 %; also after SIGSTOP and after the
//	     machine was suspended. A backend never reports more time than is left.
//	C10  A broken lease ends its holder's context immediately where the backend
//	     pushes, else by the next renewal. A break takes the lock from exactly
//	     the leases that held it when the break began, even from thousands. It
//	     names them and raises the token: a lease that is granted while the break
//	     runs is one of them, or has a token that is not below the break's. With
//	     Redlock, grants that are in progress at the same time have no order.
//	C11  Bad input is a typed error that names the field, the value and the
//	     bound, before anything is sent or changed.
//	C12  When the backend is unavailable, a call ends with its context at the
//	     latest, and reports whether the lease may be held.
//	C13  Close releases what is held, ends every goroutine and connection, and
//	     leaves nothing on the backend but what tokens need.
//	C14  A grant whose time ran out on the way is never returned as held.
//
// # Who does what
//
// The client (package holdfast) owns retries, the timing of renewals, local deadlines, re-entry,
// events and the signal of loss. A backend owns the queue, the tokens, the clock and
// the wake-ups. Its only timers are those that a wait needs.
//
// # Sessions and timed leases
//
// A session represents a live client: one Renew keeps every lease and every place in the queue that
// belongs to it. It never revives: once a backend has seen it expired, its ID is dead and every
// call under it gets ErrSessionLost. A timed lease has its own end and outlives the process that
// acquired it. Its place in the queue still belongs to a session, so that a dead waiter does not
// hold up the others. Its TTL counts from the grant.
//
// A backend whose Capabilities.Sessions is false refuses OpenSession and EndSession with
// ErrUnsupported and grants timed leases only, with an empty session. A backend whose
// Capabilities.Timed is false, because leases in its store end only with a connection, refuses
// timed leases with ErrUnsupported.
//
// # Helpers for engines
//
// Every backend may use these. They need no store:
//
//	Admit          how many requests of a queue are compatible with the leases that are held
//	Front          a queue as it stands: which requests are granted, and which one blocks another
//	Within         the context of a call, which ends when the backend is closed
//	Endpoint       a host of a URL, with the default port
//	EscapeSegment  the name of a lock as one segment of a path or key
//	PartDone       the error of a call of which a part may have been done
package backend
