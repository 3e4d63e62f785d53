// Package redislock keeps locks on one Redis 7.
//
//	b, err := redislock.New(client, redislock.Config{}) // the program's own rueidis client
//	locks, err := holdfast.New(b, holdfast.Config{})
//
// # Guarantees
//
// C1 to C14, while one server has the data, keeps its memory, and its clock is not stepped
// forward. A restart that may have lost data is noticed: all sessions are over, and nothing
// is granted until what may have been out has run out (the quarantine). So is a fail-over.
// But a master that was cut off from its replicas, and lives on while one of them is made
// the master, can grant what that one grants too, unless Config.Replicas has it wait for
// them; tokens grow through it, so that a resource which checks them is safe. For
// efficiency rather than for correctness, unless the token is checked.
//
// # How it works
//
// Every verb is one call of one function of the server (folder lua), for which the
// server's clock is the only clock. What is asked at the same time travels in one call,
// and what many leases have in common travels once. The function is loaded when the
// server does not know it; its name is made of its text, so that versions do not meet.
// A server without functions, or a user who may not use them, gets a script that does
// the same. All keys of a partition share a hash tag, "{hf0}:", so that a call touches one
// slot of a Cluster:
//
//	m           the marker: which data this is, and until when nothing is granted
//	x           zset of what lives, sessions and timed leases, by the instant it ends
//	n           zset of the names of the locks that are held or waited for
//	l:NAME      hash of the leases that are out, and a summary
//	o:NAME      instead, where there is one, exclusive, and nobody waits: as a text
//	q:NAME      zset of the leases in line, first come first; w:NAME has their records
//	f           the greatest token so far, of all locks
//	s:SESSION   hash of what the session holds and waits for
//	d:ID        an ID that must not come to life (again)
//	v           the name of the stream of events, while somebody watches
//	e:..., c:... channels: events, and one for each backend value
//
// A release, a break, the end of a session and the expiry of a lease all run the same
// advance: it grants to the head of the line for as long as it fits, and publishes each
// grant on the channel of the value that waits. A waiter at rest sends nothing. It has a
// timer, set from the time left that the server told: when it fires, one call for all
// who wait for that lock looks again. So a push that was lost costs a timer.
//
// One call renews a session, and with it every lease of it: their life is the
// session's. What has ended is swept off by whoever calls next, a bounded piece at a
// time; no decision is ever made on what has ended.
//
// The token is the greater of the last one + 1 and the server's clock in microseconds:
// it grows also after the data was lost. A clock that is more than an hour behind the
// last token is refused, not trusted.
//
// A server that has no marker has lost its data, or is new. It grants nothing until the
// longest TTL in use has passed since it was started: at least Config.Quarantine. A
// server that has been up for longer than that is used at once. Who asks meanwhile gets
// *backend.QuarantineError, those too who would wait: nobody joins a line that nobody is
// before. Clients that listen greet the server as soon as they are connected again, so
// that it hears of their TTLs before the quarantine is over. A process of the server
// that was not greeted yet for this data does nothing but tell so: hello compares its run,
// and its replication ID if it was made the master, with those in the marker, and so finds
// out whether it may have lost what came last.
// Then the data is of a new generation, and all sessions of the one before are over: what
// they hold may be what is missing.
//
// In a Cluster, and behind Sentinel, one server has the data at a time: whoever has the
// slot of the tag, or whom more than half of the sentinels name. It is looked for again
// when it says MOVED or READONLY, or does not answer. ASK is not followed: while a slot is
// on its way, a script on the new server would take keys that have not come for keys that
// are not there. What is on disk counts for nothing there, so a server that was restarted
// keeps the quarantine.
//
// With Config.Replicas each request is followed by WAIT, on its connection; a hand-over
// that was pushed is asked for first. What too few replicas have is an error that says that
// it may have worked, so that the client gives it back.
//
// # Requires
//
// Redis 7.0 or newer, or Valkey, with functions or scripts allowed, and maxmemory-policy noeviction:
// another policy can delete locks (a warning goes to Config.Logger). Persistence with
// appendfsync always keeps the leases through a crash. The user needs the keys and
// channels that begin with the prefix, the commands that the program uses, and FCALL and
// FUNCTION LOAD or EVAL and EVALSHA.
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
// rediss+cluster and rediss+sentinel are for TLS. NAME is the one that the sentinels have
// for the servers; user and password are those of the servers, and sentinels are asked
// without.
//
// # When the lock is lost
//
// When no renewal of the session was acknowledged in time; when an operator broke it,
// which is pushed; when data is lost, or may be: then every session is over.
//
// # Do not use when
//
// a fail-over to a replica must never grant a lock twice and the resource cannot check
// the token: use etcd, or redlock. A Cluster makes nothing faster: all locks of a prefix
// are on one of its servers.
package redislock
