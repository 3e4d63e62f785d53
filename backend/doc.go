// Package backend defines the contract between Holdfast and the stores that keep its leases. It
// names no product. The backends are in the folders below it, and backend/backendtest is the suite
// that checks each of them against these rules.
//
// # The contract
//
// The IDs are those of the conformance suite and of docs/guarantees.md.
//
//	C1   The leases held at any time are compatible: one exclusive lease, or shared
//	     leases within the limit. A lease counts until it has expired on the backend.
//	C2   Tokens of one lock strictly increase in the order of grants, also across
//	     restarts, release, expiry, break and garbage collection.
//	C3   Waiters are granted in the order in which the backend received them. No
//	     waiter is overtaken, so readers never starve a writer, nor the reverse.
//	C4   A lease that is not renewed is free no earlier than its TTL after the
//	     backend received it, and no later than TTL + Capabilities.ExpiryLag.
//	C5   Only the lease ID renews or releases. A stale one gets ErrLost and
//	     changes nothing. Lost is final: a renewal never creates or revives.
//	C6   The same acquire sent twice with the same lease ID yields one grant. A
//	     release sent twice frees once and harms no successor.
//	C7   A waiter that gives up leaves nothing behind. An abandoned acquire is
//	     known gone, also when its request arrives after it was abandoned.
//	C8   A waiter that dies delays the queue by no more than its session's TTL. A
//	     lost wake-up costs a timer, never a hang.
//	C9   A holder's context ends before its lease can end on the backend (kept by
//	     package holdfast; the backend must never report more time than is left).
//	C10  The loss of a lease that was broken by an operator, or lost with its
//	     session, is reported immediately where the backend can push, else by the
//	     next renewal. A break raises the token.
//	C11  Bad input is an *InvalidError before anything is sent or changed.
//	C12  When the backend is unavailable a call ends with its context at the latest,
//	     and the error says whether the lease may be held.
//	C13  Close ends every goroutine and connection and leaves nothing on the
//	     backend but what tokens need.
//	C14  A grant that expired on the way is never returned as held.
//
// # Who does what
//
// The client (package holdfast) owns retries, the timing of renewals, local deadlines, re-entry in
// one process, events and the signal of loss. A backend owns the queue, the tokens, the clock and
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
package backend
