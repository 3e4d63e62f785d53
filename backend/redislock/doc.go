// Package redislock keeps locks on one Redis 7.
//
//	b, err := redislock.New(client, redislock.Config{}) // the program's own rueidis client
//	locks, err := holdfast.New(b, holdfast.Config{})
//
// # Guarantees
//
// C1 to C14, while this one server keeps its memory and its clock is not stepped
// forward. A restart that lost data is noticed, and nothing is granted until what may
// have been out has run out (the quarantine). A fail-over to a replica that lags can
// grant a lock twice; tokens grow through it, so that a resource which checks them is
// safe. For efficiency rather than for correctness, unless the token is checked.
//
// # How it works
//
// Every verb is one call of one script (folder lua), for which the server's clock is the
// only clock. All keys of a partition share a hash tag, "{hf0}:", so that the script
// touches one slot of a Cluster:
//
//	m           the marker: which data this is, and until when nothing is granted
//	x           zset of what lives, sessions and timed leases, by the instant it ends
//	n           zset of the names of the locks that are held or waited for
//	l:NAME      hash of the leases that are out, and a summary
//	q:NAME      zset of the leases in line, first come first; w:NAME has their records
//	f           hash of the greatest token of each lock; it outlives the lock by two days
//	g           where the search for older ones goes on
//	s:SESSION   hash of what the session holds and waits for
//	d:ID        an ID that must not come to life (again)
//	e, c:...    channels: events, and one for each backend value
//
// A release, a break, the end of a session and the expiry of a lease all run the same
// advance: it grants to the head of the line for as long as it fits, and publishes each
// grant on the channel of the value that waits. A waiter at rest sends nothing. It has a
// timer, set from the time left that the script told: when it fires, one call for all
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
// server that has been up for longer than that is used at once.
//
// # Requires
//
// Redis 7.0 or newer, or Valkey, with scripts allowed, and maxmemory-policy noeviction:
// another policy can delete locks (a warning goes to Config.Logger). Persistence with
// appendfsync always keeps the leases through a crash. The user needs the keys and
// channels that begin with the prefix, and the commands of the scripts.
//
// # URL
//
//	redis://[user:password@]host[:port][/db][?parameters]
//	rediss://...             with TLS
//	redis+unix:///path/of/the/socket
//
// Parameters: prefix, timeout and quarantine ("off" or a duration); see Config.
//
// # When the lock is lost
//
// When no renewal of the session was acknowledged in time; when an operator broke it,
// which is pushed; when the data is lost: then every session is over.
//
// # Do not use when
//
// a fail-over to a replica must never grant a lock twice and the resource cannot check
// the token: use etcd. Cluster and Sentinel are prepared for in the layout of the keys,
// but not offered yet.
package redislock
