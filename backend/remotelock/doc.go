// Package remotelock keeps locks on a Holdfast server, over its HTTP API.
//
//	b, err := remotelock.Open(ctx, "holdfast://127.0.0.1:7420", remotelock.Config{})
//	locks, err := holdfast.New(b, holdfast.Config{})
//
// # Guarantees
//
// The guarantees are those of the server's backend, as far as HTTP carries them: C1 to C8, C11,
// C12 and C14 hold here if they hold there. All leases are timed leases. There are no sessions:
// a client renews its leases individually, many in one request. A loss is reported by the next
// renewal, not by push (C10). A semaphore of one permit is refused with ErrUnsupported.
//
// # How it works
//
// An acquire that waits is a long poll: a POST with a wait of up to 20 s, repeated with the
// same lease ID until the context ends. The header Holdfast-Keep-Place asks the server to keep
// the place in the queue for 10 s between two polls, so that no other waiter overtakes. When
// the server restarts, the backend keeps the place until the server's Config.PlaceTTL has
// passed; the next poll resumes it. A caller that gives up sends DELETE, which also cancels an
// acquire that is still on its way.
//
// Concurrent acquires and releases are sent in batches: at most two requests are in progress,
// and operations that arrive in the meantime go into the next one. A single operation uses the
// call for one, and a request that takes longer than 10 ms no longer holds back the next. An
// acquire in a batch does not wait in the queue. If the lock turns out to be held, an acquire
// that waits sends a second request, the long poll, and is in the queue from then on. To keep
// that rare, an acquire starts with the long poll if another client waited for the lock
// recently, or if this client already has an acquire of it in progress. When a server does not
// know the call for batches, or a proxy does not let it pass, it is not used again for five
// minutes.
//
// Time left is counted from before the request was sent. A grant at the end of a long poll is
// requested once more, so that the count begins late.
//
// Waiting polls and all other calls use separate connections, so that no renewal waits behind a
// poll. HTTP/2 is used if the server speaks it, also without TLS: a thousand waiters then need
// only a handful of connections.
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
//	holdfast+unix:///path          a Unix socket
//	holdfast://host:port/base      behind a proxy that serves it under a path
//	holdfast://a,b:port,c          several servers of one store, at most 16
//
// The default port is 7420. The parameter token_file names a file with the token, which is read again
// when it changes. With holdfasts, ca, cert and key are files in PEM (the authority of the server's
// certificate, and a client certificate), and server_name is the name that the server's certificate is
// for. Any other parameter is an error. An @ in the path is written %40, and a slash in
// the token %2F. A token is not sent over plain HTTP, except to this host.
//
// # Several servers
//
// One server is used until it does not answer, or answers 503; then the next one is. Leases and places in the
// queue are the store's, so the client keeps them. A request that was not sent goes to the next server
// immediately.
//
// All servers that an address leads to must have one store: two would grant a lock twice. Each answer names the store, and
// each request the one that this client knows from the first answer. A server of another store refuses the request,
// and the error is a *RefusedError: until the address leads to the first store again, or the program is restarted. So
// does a client of a server that was started on another store; what it holds ends at its deadline. The stores
// with an ID are etcd and SQLite. With another --backend, see to it that all servers
// have the same.
//
// # When the lock is lost
//
// A lock is lost when no renewal was acknowledged for the TTL, when an operator broke the lock,
// and when the backend of the server lost it. The next renewal returns ErrLost.
//
// # Do not use when
//
// the program can reach the store itself: the server is one more component that can be
// unavailable. Use it to keep the store's password off the clients, and for programs that
// know only HTTP.
package remotelock
