// Package server serves locks over HTTP, on any backend.
//
//	srv, err := server.New(b, server.Config{})
//	err = srv.Serve(ctx, listener) // until ctx ends; then waiters get their answer
//
// The API is described by the OpenAPI document at /openapi.json. In short:
//
//	POST   /v1/locks/{name}                  acquire; waits in line up to "wait"
//	PUT    /v1/locks/{name}/leases/{lease}   renew
//	DELETE /v1/locks/{name}/leases/{lease}   release
//	POST   /v1/leases/renew                  renew many
//	POST   /v1/leases/batch                  acquire and release many
//	GET    /v1/locks, /v1/locks/{name}       who holds, who waits
//	DELETE /v1/locks/{name}                  break
//	GET    /v1/events                        server-sent events
//	GET    /healthz /readyz /metrics /openapi.json /
//
// # State
//
// The server keeps no lock of its own: leases, places in line and tokens are the
// backend's. So leases survive its restart, and several servers may stand before
// one backend. All leases taken over HTTP are timed leases: they end by themselves.
//
// # Who gives a lease back
//
// A lease ID that the server made up is known to nobody when its request fails. The
// server gives it back itself: when the client hung up before the answer was begun, when
// the grant was over by then (503), when the outcome is unknown. Once a part of the answer
// was sent the lease is the client's, whatever happens to the connection: a client may
// have read its answer and hung up before the server learns that it was sent. A client
// that died there leaves the lease to its TTL. holdfast_untold_total and the log tell of
// both.
//
// A lease ID that the client made up ("lease" in the request) is the client's to
// give back, with DELETE. The server never releases it, because the client may have
// asked again, perhaps at another server, and may hold it by now. What the server
// does take back is the place in line: it belongs to a session that lives as long as
// the request. When the request ends, the session is ended, and with it the place,
// in one step in the backend, unless another request for the same lease has taken
// the place over. A grant that raced the end of its request stays out until its TTL
// is over, or the client asks again, or DELETEs it.
//
// The header Holdfast-Keep-Place (a duration) asks that the place be kept for a
// moment after the request has ended: a client that polls with the same lease ID
// then keeps its turn. The place falls when that time, or the TTL of its session
// (Config.PlaceTTL), is over. When the server stops, waiters get 503 with
// Retry-After and every place of a client-made lease is left in line in this way.
//
// # Batches
//
// POST /v1/leases/batch takes many locks that are free, and gives many leases back, in one
// request: a client with many callers is bound by the requests, and a backend that can makes
// one transaction of them. Each item is checked, authorised, counted in its lane and done
// as if it had come on its own. All are done at once, but the releases of a lock before its
// acquires. The answer has a line for each, told when the backend has answered it: a
// lock that takes long holds up no other. Nothing waits in line in a batch, and every lease
// ID in it is the client's.
//
// # Limits
//
// Every request passes one guard: it checks the Host header (DNS rebinding), the
// origin (cross-site requests), Config.Authorize, and takes a place in a lane.
// Acquires, reads and streams have lanes of their own, apart from the lane of
// renewals and releases: an overload sheds acquires and never makes a holder lose
// its lock. See [Limits] for the numbers.
//
// Renewals and releases of leases that this server granted or renewed come before those
// of leases that it does not know. How many acquires the backend decides on at the same
// time, and how many lists are read and encoded, is bounded by the number of processors.
// A refusal names at most 16 holders, and as many as fit into 32 KiB, however many there
// are; those of a batch share 32 KiB. A page of a list ends early where it is over 1 MiB.
// Where there are too many connections, a new one takes the place of one that no request
// is served on, and that of a holder of a lease last.
//
// # Who is told lease IDs
//
// Whoever knows the ID of a lease can take it over, renew it and release it. Where
// Config.Authorize decides, the lease IDs of a lock are told to those only who may break
// it: refusals, lists and events have empty ones for the others. With Config.Principal, the
// ID alone is not enough: see there.
package server
