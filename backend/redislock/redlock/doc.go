// Package redlock keeps locks on a majority of several independent Redis servers.
//
//	b, err := redlock.New(clients, redlock.Config{}) // the program's own rueidis clients, one for each server
//	locks, err := holdfast.New(b, holdfast.Config{})
//
// # Guarantees
//
// C1 to C14 except C3 and what Capabilities does not claim: waiters are granted in no
// promised order; there are no sessions and no events; the nodes do not know the waiters. It works while a majority of the nodes works. Exclusion
// depends on time: the clocks of nodes and clients must run at about the same rate, and no
// node's clock may be stepped forward. None of this stops a client that was suspended for
// longer than its lease and then acts. The token is for that, and does not depend on time:
// it grows as long as no majority of the nodes loses its data at the same time. A resource
// that checks the token is safe.
//
// # How it works
//
// Each node votes independently, by one program (the folder lua: a function of the server, or
// a script if it takes none) and its own clock. The client sends its request to all nodes
// concurrently, and a lease with a quorum of votes is held. A quorum is a majority, or, with
// a limit of c permits, floor(n*c/(c+1)) + 1 of n nodes, which is 4 of 5 for c of 2 and 3,
// and all of 5 from 4 on. An acquire that has its quorum does not wait for the slowest node.
// A node that did not answer in time counts as down. It gets only a probe until it answers
// again, and then the releases that it missed. So as a rule a node that hangs costs an
// acquire 20 ms, or three times what the other nodes took if that is longer, and only until
// Config.RequestTimeout has passed.
//
// A lease is valid for its TTL, less the time since before the first request was sent and an
// allowance for clocks, 1 % of the TTL and 2 ms. Votes that do not reach a quorum are
// released, also those still on their way: each attempt has a number, and a node refuses an
// attempt that was released before it arrived. When several clients split the votes, the one
// with the most votes keeps them for a while. The others release theirs and retry after a
// random pause.
//
// A lock is refused, or waited for, only while other leases have a quorum of it, or may have
// one on nodes that do not answer. Of the waiters in one process only the first sends
// requests. It is woken when a majority of the nodes publishes that a lease was released, and
// by a timer when a lease in its way can expire.
//
// The token: each node has a counter for each lock. A vote raises it to more than it was, and
// at least to the client's clock in microseconds. The token of a grant is the greatest of its
// votes, and is on a majority of the nodes before the grant counts. As a rule all votes have
// the same token, and nothing more is to be done. Otherwise it is written back, to nodes
// where the vote still exists and no other lease has as great a token. Every later quorum has
// a node that knows it. docs/backends/redlock.md has the argument, model_test.go checks it.
//
// A node that may have lost data does not vote until Config.MaxTTL has passed: it finds that
// its marker is missing, or that it was restarted without having written everything to disk.
// Until then the votes that it still has do not count, and are not renewed.
// While too few nodes vote, callers get *backend.QuarantineError. New nodes, if all of them
// are new, vote once they have been up for that long. Nodes that were emptied while they were
// up, or that take no functions, are not known to be new.
//
//	hfr:m        the marker: since when the data is there
//	hfr:f:NAME   the counter, which outlives the lock by two days, and with it the vote of
//	             a lock that has one, exclusive vote
//	hfr:l:NAME   hash of the votes in all other cases
//	hfr:d:LEASE  an abandoned lease, or an attempt that was released
//	hfr:n        zset of the names of the locks
//	hfr:t        the sorted names for a page of List, within one call
//	hfr:w:NAME   channel: a lease was released
//
// # Requires
//
// Three or more masters, an odd number, of Redis 7.0 or newer or Valkey, on machines that do
// not fail together: no replicas, no Cluster. Functions or scripts allowed, maxmemory-policy
// noeviction. With appendonly yes and appendfsync always a node that was restarted votes
// immediately. An AOF that was turned off at run time must be deleted before a restart. The
// user needs the keys and channels that begin with the prefix, and the commands of the program,
// FCALL and FUNCTION LOAD, or EVAL and EVALSHA.
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
// A lock is lost when no renewal was acknowledged by a quorum in time; when an operator broke
// it, which the next renewal reports; and when too many nodes lost their data.
//
// # Do not use when
//
// there is etcd, ZooKeeper or a database with consensus: they are simpler to run and do not
// depend on clocks. Nor when waiters must be served in order.
package redlock
