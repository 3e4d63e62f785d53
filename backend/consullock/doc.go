// Package consullock keeps locks in Consul.
//
//	b, err := consullock.New(client, consullock.Config{}) // the program's own client of Consul
//	locks, err := holdfast.New(b, holdfast.Config{})
//
// # Guarantees
//
// C1 to C14, except for what Capabilities does not claim: no timed leases and no events. Leases end
// with their session, and the session with the process. TTLs are session_ttl_min or more, which is 10 s by default. Consul ends a session no earlier than its TTL
// and as late as twice that (developer.hashicorp.com/consul/docs/dynamic-app-config/sessions): for
// that long a lock may stay with a process that died, and a new leader starts to count again. A
// process that lives and cannot renew gives up after the TTL by itself, and requests the end of
// its session.
//
// # How it works
//
// Each client has one session of Consul, whose end deletes all keys that it locks. It is tied to a
// node "holdfast-sessions" of the catalog, which the client registers and which belongs to no
// agent: Consul ends the sessions of a node immediately when that leaves the cluster, and an agent
// that is restarted leaves. The keys:
//
//	PREFIX/locks/NAME/LEASE   held or waiting; NAME with %XX for what is not a segment
//	PREFIX/notices/SESSION    notices for the session: breaks
//	PREFIX/abandoned/LEASE/NAME   a lease that must not come to life
//	PREFIX/token              written by a break of a free lock, whose token is its index
//
// The queue of a lock is its keys in the order of their CreateIndex, and the holders are the front
// of it as far as it fits: they are not recorded anywhere, so nothing can disagree. An acquire is
// one transaction: it checks that the lease was not abandoned, creates the key and reads the queue.
// The token is the CreateIndex of the key: the index of the store's log, which only grows; but a
// snapshot restored into a new cluster sets it back.
//
// All waiters for one lock in this process share one blocking query, on the key that the first of
// them waits for. It is answered when that key changes, so a release wakes one process, however
// many wait. Every half minute the queue is read again, in case an answer was lost. Where a process
// waits for more than 32 locks, the others share one query, on all locks: any change then makes the
// process read all of them. Any other request has ten seconds to be answered, however long its
// caller would wait.
//
// Within a process a hand-over needs no query. An acquire that has to wait has seen the queue,
// which can change only in that entries leave, so a release knows the next waiter. Its transaction
// deletes the one key and reads the other; if both existed the next waiter is told immediately.
// Every decision is Consul's: if anything else happened, the follower of the queue reads it as
// before.
//
// Consul's lock-delay keeps a key that was taken from its session from being locked again, for 15 s
// by default. Sessions request the minimum, 1 ms, and each lease has a key of its own, so the delay
// holds up no client. Tokens serve the purpose of the lock-delay.
//
// # Requires
//
// Consul 1.7 or newer. With ACLs: a token that may write keys below the prefix, sessions on the
// node "holdfast-sessions", and that node, unless it exists already. Without those two rights,
// sessions on the agent's node are used; then no lock may be held while the agent leaves the
// cluster, and Examine warns of it. Consul accepts 200 connections from one address by default
// (limits.http_max_conns_per_client). Open makes up to 98, of which a process that waits for one
// lock keeps two busy: raise the limit for an agent that more than a few busy processes share. With
// New the client's own limit applies (http.Transport.MaxConnsPerHost): it must not be below 98.
//
// # URL
//
//	consul://[:token@][host[:8500]][/prefix][?dc=&ns=&partition=&min_ttl=10s]
//	consuls://host?ca=ca.pem&cert=client.pem&key=client.key&server_name=name
//
// # When the lock is lost
//
// When the session was not renewed in time, or an operator ended it in Consul; when an operator
// broke the lock; when the process ends. All of these are pushed, but to at most 16 sessions of a
// backend value: others learn of them by their next renewal. If the key of a lease was deleted, the
// next renewal reports it, or a later one if more than 64 leases are held.
//
// # Do not use when
//
// the lock of a dead process must be free within seconds, or leases must outlive the process that
// acquired them.
package consullock
