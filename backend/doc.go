// Package backend is the contract between Holdfast and the stores that keep its
// leases. It names no product. The backends stand in the folders below it, and
// backend/backendtest is the suite that holds each of them to these rules.
//
// # The contract
//
// The IDs are those of the conformance suite and of docs/guarantees.md.
//
//	C1   What is out at any time is compatible: one exclusive lease, or shared
//	     leases within the limit. A lease counts until its time has run out on
//	     the backend.
//	C2   Tokens of one lock strictly increase in the order of grants, also across
//	     restarts, release, expiry, break and garbage collection.
//	C3   Waiters are granted in the order in which the backend received them.
//	     Nobody is overtaken, so readers never starve a writer, nor the reverse.
//	C4   A lease that nobody renews is free no earlier than its TTL after the
//	     backend received it, and no later than TTL + Capabilities.ExpiryLag.
//	C5   Only the lease ID renews or releases. A stale one gets ErrLost and
//	     changes nothing. Lost is final: a renewal never creates or revives.
//	C6   The same acquire asked twice with the same lease ID yields one grant. A
//	     release asked twice frees once and harms no successor.
//	C7   A waiter that gives up leaves nothing behind. An abandoned acquire is
//	     known gone, also when its request arrives after it was abandoned.
//	C8   A waiter that dies delays the line by no more than its session's TTL. A
//	     lost wake-up costs a timer, never a hang.
//	C9   A holder's context ends before its lease can end on the backend (kept by
//	     package holdfast; the backend must never report more time than is left).
//	C10  A lease broken by an operator, or lost with its session, is told at once
//	     where the backend can push, else by the next renewal. A break raises the
//	     token.
//	C11  Bad input is an *InvalidError before anything is sent or changed.
//	C12  When the backend is away a call ends with its context at the latest, and
//	     the error says whether the lease may be held.
//	C13  Close ends every goroutine and connection and leaves nothing on the
//	     backend but what tokens need.
//	C14  A grant whose time already ran out on the way is never returned as held.
//
// # Who does what
//
// The client (package holdfast) owns retries, the timing of renewals, local
// deadlines, re-entry in one process, events and the signal of loss. A backend
// owns the line, the tokens, the clock and the wake-up. It keeps no timers of
// its own but those that a wait needs.
//
// # Sessions and timed leases
//
// A session is a client's liveness: one Renew keeps every lease and every place
// in line that belongs to it. It never revives: once a backend has seen it
// expired, its ID is dead and every call under it gets ErrSessionLost. A timed
// lease has its own end and outlives the process that took it. While it waits,
// its place in line belongs to a session all the same, so that a dead waiter
// does not hold up the others; its TTL counts from the grant.
//
// A backend whose Capabilities.Sessions is false refuses OpenSession and
// EndSession with ErrUnsupported and takes timed leases only, with an empty
// session. One whose Capabilities.Timed is false, because its store knows no end but
// that of a connection, refuses timed leases with ErrUnsupported.
package backend
