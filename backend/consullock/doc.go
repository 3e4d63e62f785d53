// Package consullock keeps locks in Consul.
//
//	b, err := consullock.New(client, consullock.Config{}) // the program's own client of Consul
//	locks, err := holdfast.New(b, holdfast.Config{})
//
// # Guarantees
//
// C1 to C14 as far as they are declared: no leases with an end of their own, no re-entry
// across processes, no events. Leases live with their session, and that with the process.
// TTLs are session_ttl_min or more, 10 s where Consul is not told otherwise. Consul ends
// a session no earlier than its TTL and as late as twice that
// (developer.hashicorp.com/consul/docs/dynamic-app-config/sessions): so long may a lock
// stay with a process that died, and a new leader begins to count anew. One that lives and could not renew gives up after the
// TTL by itself, and asks for the end of its session.
//
// # How it works
//
// Each client has one session of Consul, whose end deletes all keys that it locks. It is tied
// to a node "holdfast-sessions" of the catalog, which it makes and which is of no agent: Consul ends the
// sessions of a node at once when that leaves the cluster, and an agent that is restarted
// leaves. The keys:
//
//	PREFIX/locks/NAME/LEASE   out or in line; NAME with %XX for what is not a segment
//	PREFIX/notices/SESSION    what the session is to be told: breaks
//	PREFIX/abandoned/LEASE/NAME   a lease that must not come to life
//	PREFIX/token              written by a break of a lock that nobody holds, whose token is its index
//
// The line of a lock is its keys in the order of their CreateIndex, and who is out is the
// front of it as far as it fits: nobody writes that down, so nothing can disagree. To
// acquire is one transaction: it sees that the lease was not abandoned, creates the key
// and reads the line. The token is the CreateIndex of the key: the index of the store's
// log, which only grows; but a snapshot restored into a new cluster takes it back.
//
// Who waits asks one blocking question for all that wait for one lock in this process:
// about the key that the first of them waits for. It is answered when that key changes,
// so a release wakes one process, however many wait. Every half minute it looks again,
// lest an answer was lost. Where a process waits for more than 32 locks, the others share
// one question, about all locks: a change anywhere makes it look at all of them then.
// Any other request has ten seconds to be answered, however long its caller would wait.
//
// Within a process a lock goes from hand to hand without a question: an acquire that has to
// wait has seen the line, of which nothing can change but that somebody leaves, so that a
// release knows who is next. Its transaction deletes the one key and reads the other; when
// both were there the next one is told at once. Nothing is decided here that Consul did not:
// where anything else happened, who follows the line looks at it as before.
//
// Consul's lock-delay keeps a key that was taken from its session from being locked
// again, for 15 s where it is not told otherwise. Sessions ask for the least, 1 ms, and
// each lease has a key of its own: it delays nobody. What it is for, the token does.
//
// # Requires
//
// Consul 1.7 or newer. With ACLs: a token that may write keys below the prefix, sessions on
// the node "holdfast-sessions", and that node, which need not be where it is there already. Without
// those two, sessions on the agent's node do; then nobody may hold a lock while the agent
// leaves the cluster, and Examine warns of it. Consul takes 200 connections from one address where it is
// not told otherwise (limits.http_max_conns_per_client). Open makes up to 64, of which a
// process that waits for one lock keeps two busy: raise the limit for an agent that more
// than a few busy processes share. With New it is the client that bounds them
// (http.Transport.MaxConnsPerHost): not below 64.
//
// # URL
//
//	consul://[:token@][host[:8500]][/prefix][?dc=&ns=&partition=&min_ttl=10s]
//	consuls://host?ca=ca.pem&cert=client.pem&key=client.key&server_name=name
//
// # When the lock is lost
//
// When the session was not renewed in time, or an operator ended it in Consul; when an
// operator broke the lock; when the process ends. All of it is pushed. That somebody deleted
// the key of a lease the next renewal finds out, or where more than 64 are out one after it.
//
// # Do not use when
//
// a dead process must not hold a lock for more than seconds; or leases have to outlive
// the process that took them.
package consullock
