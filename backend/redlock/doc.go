// Package redlock keeps locks on the majority of several Redis servers that know nothing
// of each other.
//
//	b, err := redlock.New(clients, redlock.Config{}) // the program's own rueidis clients, one for each server
//	locks, err := holdfast.New(b, holdfast.Config{})
//
// # Guarantees
//
// C1 to C14 but for C3, as far as they are declared: waiters are served in no promised
// order; no sessions, no re-entry across processes, no events; the nodes do not know who
// waits. It goes on while a majority of the nodes does. Exclusion rests on time: that the
// clocks of nodes and clients run at about the same rate, and that no node's clock is
// stepped forward. Who is stopped for longer than its lease and then acts is not held up
// by any of this. The token is for that, and does not rest on time: it grows as long as no
// majority of the nodes loses its data at once. A resource that checks it is safe.
//
// # How it works
//
// Each node votes on its own, by one program (the folder lua: a function of the server, or
// a script where it takes none), on its own clock. All nodes are
// asked at once, and whoever has a quorum of votes has the lease: a majority, or, with a
// limit of c permits, floor(n*c/(c+1)) + 1 of n nodes, which is 4 of 5 for c of 2 and 3,
// and all of 5 from 4 on. Nobody waits for the slowest. A node that did not answer once is
// taken for down: nothing is sent to it but a probe, and what was to be given back there,
// when it is up again. So a node that hangs costs a caller 20 ms at most, and only until
// Config.RequestTimeout has passed.
//
// A lease is valid for its TTL, less what passed since before the first request left and
// an allowance for clocks, 1 % of the TTL and 2 ms. Votes that are no quorum are given back,
// those on their way too: each attempt has a number, and a node refuses an attempt that was
// given back before it came. Who has the most votes of several that split them keeps them
// for a while; the others give theirs back and ask again after a random pause.
//
// A lock is refused, or waited for, only while somebody has a quorum of it. Of those who
// wait in one process only the first asks. It is woken when a majority of the nodes
// publishes that a lease was given back, and by a timer when that can end by itself.
//
// The token: each node has a counter for each lock. A vote raises it to more than it was,
// and at least to the client's clock in microseconds. The token of a grant is the greatest
// of its votes, and stands on a majority before the grant counts: as a rule all votes are
// the same, and nothing more is to be done; else it is written back, to nodes where the vote
// still stands and no other lease has as great a token. Every later quorum has a node that
// knows it. docs/backends/redlock.md has the argument, model_test.go checks it.
//
// A node that may have lost data does not vote until Config.MaxTTL has passed: it finds
// that its marker is missing, or that it was restarted without having written everything
// to disk. While too few vote, who asks gets *backend.QuarantineError. New nodes, all of
// them, vote once they have been up for so long; nodes that were emptied while they were up, or
// that take no functions, are not known to be new.
//
//	hfr:m        the marker: since when the data is there
//	hfr:f:NAME   the counter, which outlives the lock by two days, and with it the vote of
//	             a lock that has one, exclusive vote
//	hfr:l:NAME   hash of the votes that are out otherwise
//	hfr:c        zset of the names of the locks with a counter
//	hfr:d:LEASE  an abandoned lease, or an attempt that was given back
//	hfr:n        zset of the names of the locks
//	hfr:t        what a page of List is taken from, within one call
//	hfr:w:NAME   channel: a lease was given back
//
// # Requires
//
// Three or more masters, an odd number, of Redis 7.0 or newer or Valkey, on machines that
// do not fail together: no replicas, no Cluster. Functions or scripts allowed,
// maxmemory-policy noeviction. With appendonly yes and appendfsync always a node that was restarted votes at
// once. The user needs the keys and channels that begin with the prefix, and the commands
// of the program, FCALL and FUNCTION LOAD, or EVAL and EVALSHA.
//
// # URL
//
//	redlock://[user:password@]host1[:port],host2[:port],host3[:port][/db][?parameters]
//	redlocks://...           with TLS: ca, cert, key, server_name
//
// Parameters: prefix, max_ttl, timeout, quarantine ("on" or "off") and client_name; see
// Config.
//
// # When the lock is lost
//
// When no renewal was acknowledged by a quorum in time; when an operator broke it, which
// the next renewal tells; when too many nodes lost their data.
//
// # Do not use when
//
// there is etcd, ZooKeeper or a database with consensus: they are simpler to run and do not
// rest on clocks. Nor when waiters must be served in order.
package redlock
