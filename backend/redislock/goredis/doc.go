// Package goredis keeps the locks of package redislock through a client of go-redis.
//
//	b, err := goredis.New(client, redislock.Config{}) // the program's own *redis.Client or *redis.ClusterClient
//	locks, err := holdfast.New(b, holdfast.Config{})
//
// The locks are those of package redislock: clients of both packages share them, with the same
// guarantees, on one server, a Cluster, and servers behind Sentinel.
//
// # Its own connections
//
// The backend takes from the client where the server is and how to log in there: Addr, Dialer,
// TLSConfig, DB, ClientName, OnConnect, and the user, password and credential providers. With these
// it makes connections of its own: up to ten for requests, and one for each subscription. The
// program has to set nothing for it:
//
//   - MaxRetries: none of our requests is sent twice, because the second could break the lock of a
//     later holder, or answer a release with the loss of the lock.
//   - ReadTimeout, WriteTimeout, DialTimeout: those of our requests are Config.RequestTimeout.
//   - PoolSize: commands that block, such as BLPOP, cannot keep a renewal waiting.
//   - ContextTimeoutEnabled: a caller returns when its context ends. The answer to what it sent is
//     read by nobody, or closes its connection: no other request gets it.
//   - Protocol, client-side caching, notifications of maintenance: off.
//   - MaxRedirects: ASK is never followed, MOVED is. While a slot is migrating the backend is
//     unavailable.
//
// Hooks and a Limiter of the client do not see our requests: holdfast.Hooks reports what happens to
// locks. A subscription is never continued in silence after its connection broke: the backend asks
// for the state of every waiter, as redislock does.
//
// A server that refuses the client is backend.ErrRefused, as with redislock. TLS to a server without it is a time-out: Redis
// does not answer a handshake.
//
// # Sentinel
//
// A fail-over client believes the first sentinel that answers. The URL redis+sentinel:// of package
// redislock wants the same answer from more than half of them. A sentinel that is cut off from the
// others, together with the old master, can lead a client of go-redis to that master. The
// guarantees of redislock do not cover this case, with either.
//
// # Do not use when
//
// the client is a *redis.Ring, or that of NewFailoverClusterClient, whose servers are no Cluster: New
// refuses both; NewFailoverClient is for servers behind Sentinel. See package redislock for the rest.
package goredis
