// Package server serves locks over HTTP, on any backend.
//
//	srv, err := server.New(b, server.Config{})
//	err = srv.Serve(ctx, listener) // until ctx ends; then waiters get their answer
//
// The API is described by the OpenAPI document at /openapi.json. In short:
//
//	POST   /v1/locks/{name}                  acquire; waits in the queue up to "wait"
//	PUT    /v1/locks/{name}/leases/{lease}   renew
//	DELETE /v1/locks/{name}/leases/{lease}   release
//	POST   /v1/leases/renew                  renew many
//	POST   /v1/leases/batch                  acquire and release many
//	GET    /v1/locks, /v1/locks/{name}       holders and waiters
//	DELETE /v1/locks/{name}                  break
//	GET    /v1/events                        server-sent events
//	GET    /healthz /readyz /metrics /openapi.json /
//
// # State
//
// The server keeps no lock of its own: leases, places in the queue and tokens belong to the
// backend. Leases therefore survive a restart of the server, and several servers can share one
// backend. All leases taken over HTTP are timed leases: they end by themselves.
//
// # Who releases a lease
//
// When a request fails, no client knows a lease ID that the server made for it. The server then
// releases the lease itself: when the client hung up before the answer was begun, when the
// grant had expired by then (503), and when the outcome is unknown. Once a part of the answer
// was sent, the lease is the client's, whatever happens to the connection: a client may have
// read its answer and hung up before the server learns that it was sent. A client that died at
// that point leaves the lease to its TTL. holdfast_untold_total and the log report both cases.
//
// A lease ID that the client made ("lease" in the request) is the client's to release, with
// DELETE. The server never releases it, because the client may have retried, perhaps at another
// server, and may hold it by now. What the server does take back is the place in the queue. The
// place belongs to a session that lives as long as the request. When the request ends, the
// server ends the session and with it the place, in one step in the backend, unless another
// request for the same lease has taken the place over. A grant that raced the end of its
// request stays in force until its TTL has passed, the client retries, or the client DELETEs
// it.
//
// The header Holdfast-Keep-Place (a duration) asks the server to keep the place for a while
// after the request has ended. A client that polls with the same lease ID then keeps its turn.
// The place expires when that time, or the TTL of its session (Config.PlaceTTL), has passed.
// When the server stops, waiters get 503 with Retry-After, and every place of a client-made
// lease is left in the queue in this way.
//
// # Batches
//
// POST /v1/leases/batch acquires many free locks and releases many leases in one request. It is
// for clients with many callers, whose throughput is bound by the number of requests; a backend
// that can makes one transaction of a batch. Each item is checked, authorised, counted by
// admission control and executed as if it had come on its own. All items run concurrently,
// except that the releases of a lock run before its acquires. The answer has a line for each
// item, sent when the backend has answered it: a slow lock does not delay the others. Nothing
// waits in the queue in a batch, and every lease ID in it is the client's.
//
// # Limits
//
// Every request passes one guard. It checks the Host header (DNS rebinding), the origin
// (cross-site requests) and Config.Authorize. Nothing refuses renewals, and nothing refuses releases of leases that
// this server granted or renewed: an overload never makes a holder lose its lock. For everything else there are lanes. The number
// of processors bounds how many acquires the backend decides on concurrently, how many breaks, and releases of leases that this
// server does not know, it executes, and how many reads and lists it executes and sends; a request that gets no slot within 5 s is rejected.
// [Limits] bounds the requests that wait and the event streams, and [Quota] what one principal may use.
//
// Renewals of leases that this server granted or renewed come before those of leases that it does not know. A refusal
// names at most 16 holders, and the refusals of a batch of n acquires at most 16/n each, but at least one. A page of
// a list ends early when it exceeds 1 MiB. When there are too many connections, a new one replaces
// the one whose last request is the oldest. It never replaces one whose request waits, streams events, or is a holder's.
//
// # Whose a lease is
//
// Without principals, a client that knows the ID of a lease can take it over, renew it and release
// it. With Config.Authorize, only callers who may break a lock see its lease IDs and notes, and who
// waits for it: for all others they are empty in refusals, lists and events. With Config.Identify, too, a
// lease belongs to its principal, and every caller sees its own.
//
// # The sign-in of the page
//
// With Config.Authorize, POST /v1/session exchanges the token in the Authorization header for a cookie. The
// server adds that header to each request that has only the cookie, and then authorises the request as every other:
// a token that is refused ends its sign-ins. A sign-in may read, and may break locks if it was made for that;
// everything else is refused before Authorize is called. A request that changes something also needs the header
// Holdfast-Page and an Origin that is this server. Sign-ins are kept in memory.
package server
