// Package remotelock keeps locks on a Holdfast server, over its HTTP API.
//
//	b, err := remotelock.Open(ctx, "holdfast://127.0.0.1:7420", remotelock.Options{})
//	locks, err := holdfast.New(b, holdfast.Config{})
//
// # Guarantees
//
// Those of the server's backend, as far as HTTP carries them: C1 to C8, C11, C12 and
// C14 hold as they hold there. All leases are timed leases. There are no sessions: a
// client renews its leases one by one, many in one request. A loss is told by the
// next renewal, not by push (C10). Reentrant leases, and a semaphore of one permit,
// are refused with ErrUnsupported.
//
// # How it works
//
// An acquire that waits is a long poll: POST with a wait of up to 20 s, and again,
// with the same lease ID, until the context ends. The header Holdfast-Keep-Place
// asks the server to keep the place in line for 10 s between two polls, so that
// nobody overtakes. When the server restarts, the place is kept by the backend until
// the server's Config.PlaceTTL is over; the next poll takes it up again. A caller
// that gives up sends DELETE, which also kills an acquire that is still on its way.
//
// Acquires and releases that are asked for at the same time travel in one request: two
// requests are under way at most, and what is asked meanwhile travels in the next. Who is
// alone sends the call for one, and a request that takes longer than 10 ms keeps nobody from
// leaving. What travels with others does not stand in line. Where the lock turns out to be
// held the acquire that waits asks once more, with the long poll, and is in line from then
// on. So that this is rare, an acquire of a lock that others were waiting for lately, or
// that this client asks for already, is a long poll at once. A server that does not know the
// call, or a proxy that does not let it pass, is not asked for it again for five minutes.
//
// Time left is counted from before the request was sent. A grant that came at the
// end of a long poll is asked for once more, so that the count begins late.
//
// Waiting polls and everything else travel on connections of their own, so that no
// renewal stands behind a poll. HTTP/2 is used where the server speaks it, also
// without TLS: then a thousand waiters are a handful of connections.
//
// # Requires
//
// A Holdfast server: "holdfast serve", or package server.
//
// # URL
//
//	holdfast://host:port           HTTP
//	holdfasts://host:port          HTTPS
//	holdfasts://:token@host:port   with a bearer token
//	holdfast://host:port/base      behind a proxy that serves it under a path
//
// The port is 7420 where none is given. There are no parameters; one that is given is
// an error.
//
// # When the lock is lost
//
// When no renewal was acknowledged for the TTL, when an operator broke the lock, and
// when the backend of the server lost it. The next renewal says ErrLost.
//
// # Do not use when
//
// the program can reach the store itself: every hop is another thing that can be
// away. Do use it to keep the store's password off the clients, and for programs
// that are to know nothing but HTTP.
package remotelock
