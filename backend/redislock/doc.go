// Package redislock keeps locks on one Redis 7.
//
//	b, err := redislock.New(client, redislock.Config{}) // the program's own rueidis client
//	locks, err := holdfast.New(b, holdfast.Config{})
//
// # Guarantees
//
// C1 to C14, while one server has the data, keeps its memory, and its clock is not stepped
// forward. A restart that may have lost data is detected: all sessions are lost, and nothing
// is granted until every lease that may have been held has expired (the quarantine). A
// fail-over is detected in the same way. But a master that was cut off from its replicas, and
// keeps running while one of them is promoted, can grant a lock that the new master grants
// too, unless Config.Replicas makes it wait for its replicas. Tokens grow through this as
// well, so that a resource that checks them is safe. Use it for efficiency rather than for
// correctness, unless the token is checked.
//
// # How it works
//
// Every operation of the contract is one call of one server-side function (folder lua), which
// uses the server's clock and no other. The release of a thin lock is one ZREM. Requests of many
// callers are sent in one call, and what many leases have in common is sent once. The
// function is loaded when the server does not know it. Its name is derived from its text, so
// that versions do not collide. A server
// without functions, or a user that may not use them, gets a script that does the same. All
// keys of a partition share a hash tag, "{hf0}:", so that a call touches one slot of a
// Cluster:
//
//	m           the marker: which data this is, and until when nothing is granted
//	x           zset of the live sessions and timed leases, by the instant they end
//	t           zset of the thin locks, each with its lease and the record of its holder
//	n           zset of the names of the other locks that are held or waited for
//	l:NAME      hash of the leases that are held, and a summary
//	q:NAME      zset of the waiting leases in order of arrival; w:NAME has their records
//	f           the greatest token so far, of all locks
//	s:SESSION   hash of the leases that the session holds and waits for, except thin ones
//	u:SESSION   exists for as long as the session lives
//	d:ID        an ID of a lease or a session that must not come to life (again)
//	v           the name of the event stream, while there is a watcher
//	e:..., c:... channels: events, and one for each Backend
//
// A lock is thin while one exclusive lease holds it and no client waits. Then it is one member
// of t, which has the name, the lease and the token, and nothing else on the server knows of it,
// except that a timed lease is in x. The client of a lease that lives with its session keeps that
// member and removes it to release the lock, if the session cannot have expired by the clock of the
// client: else the member may be garbage. A waiter, a watcher, or a new TTL of the lease inflates the lock: the
// holder moves to l:NAME and s:SESSION. Then ZREM removes nothing, and the client calls the function.
// A thin lease lives as long as any other: as its session, whose one renewal covers all of them, or until its end in x. Then the
// member is garbage: the next client that wants the lock ignores it, and renewals of other
// sessions remove it. While a client watches events no lock is thin.
//
// A release, a break, the end of a session and the expiry of a lease all run the same
// advance. It grants to the head of the queue for as long as the head fits, and publishes
// each grant on the channel of the Backend that waits. A waiter sends nothing while it waits.
// It has an alarm, set to the instant at which what is right ahead of it can end, as the server
// returned it. When the alarm fires, one call asks what became of the waiter, and advances the
// queue if it can; the calls of many waiters share requests. The server notifies a waiter whose
// alarm is too late by now. A lost notification therefore costs a timer, not a hang.
//
// One call renews a session and with it all its leases, because they live as long as the
// session. What has ended is removed by the next call of any client that does more than take
// one thin lock, a bounded number of records at a time. No decision is ever based on what has
// ended.
//
// The token is a counter that keeps up with the server's clock in microseconds, so that it also
// grows after a loss of data. A clock that is more than an hour behind the last token is refused,
// not trusted.
//
// A server that has no marker has lost its data, or is new. It grants nothing until the
// longest TTL in use, and at least the client's Config.Quarantine, has passed. A new server counts from
// its start, so one that has been up for longer than that is used immediately. A server that
// was found to have lost its data counts from then. A caller gets *backend.QuarantineError
// during this time, even one that would wait: it joins no queue, because a client without a
// quarantine may hand the lock over. Subscribed clients greet the server as soon as they have reconnected, so
// that it learns their TTLs before the quarantine ends. A server process that was not greeted
// yet for this data does nothing but report that. The operation hello compares its run ID,
// and its replication ID if it was promoted to master, with those in the marker, and so finds
// out whether it may have lost the newest writes. If so, the data starts a new generation,
// and all sessions of the previous one are lost, because the leases that they hold may be
// missing from the data. Timed leases of the previous generation are not renewed either, and
// keep other leases away until they end.
//
// In a Cluster and behind Sentinel one server has the data at a time: the owner of the tag's
// slot, or the server that more than half of the sentinels name. It is located again when it
// answers MOVED or READONLY, or does not answer. ASK is not followed: while a slot is
// migrating, a script on the new server would treat keys that have not arrived as keys that
// do not exist. There the data on a server's disk is not trusted, so a restarted server
// always has the quarantine.
//
// With Config.Replicas each request is followed by WAIT on the same connection, and a lease
// that was handed over is confirmed by such a request before it is returned. If too few
// replicas have a write, the error says that it may have worked, so that the client releases
// the lease.
//
// # Requires
//
// Redis 7.0 or newer, or Valkey, with functions or scripts allowed, and maxmemory-policy
// noeviction: another policy can delete locks (a warning goes to Config.Logger). Persistence with
// appendfsync always keeps the leases through a crash. An AOF that was turned off at run time must
// be deleted before a restart: it is old, but its marker claims that nothing was lost. The user
// needs the keys and channels that begin with the prefix, the commands that the program uses, ZREM,
// which the client sends itself, and FCALL and FUNCTION LOAD or EVAL and EVALSHA. Without the
// channels only notifications are lost: a waiter then waits for its timer.
//
// # URL
//
//	redis://[user:password@]host[:port][/db][?parameters]
//	rediss://...             with TLS
//	redis+unix:///path/of/the/socket
//	redis+cluster://[user:password@]host1[:port],host2[:port][?parameters]
//	redis+sentinel://[user:password@]host1[:26379],host2[:26379]/NAME[/db][?parameters]
//
// Parameters: prefix, timeout, quarantine ("off" or a duration) and replicas; see Config.
// rediss+cluster and rediss+sentinel are for TLS. NAME is the name that the sentinels have
// for the servers. User and password are those of the servers; the sentinels are queried
// without credentials.
//
// # When the lock is lost
//
// A lock is lost when no renewal of its session was acknowledged in time; when an operator
// broke it, which is pushed to the holder; and when data was lost or may have been, which
// ends every session, and every timed lease by its TTL.
//
// # Do not use when
//
// a lock must never be granted twice after a fail-over to a replica, and the resource
// cannot check the token: use etcd, or redlock. A Cluster is not faster than one server:
// all locks of a prefix are on one of its servers.
package redislock
