// Package zklock keeps leases in a ZooKeeper ensemble (3.5 or newer; tested with 3.8). It
// uses github.com/go-zookeeper/zk.
//
// # Guarantees
//
// C1 to C14 as package backend has them, but for what [Backend.Capabilities] does not
// claim: there are no timed leases, no re-entry across processes and no events. Leases
// end with the session, and a session with the backend value that opened it
// (Capabilities.Bound): another process cannot go on with it.
//
// A majority of the ensemble decides; a minority that dies or is cut off loses nothing.
// Tokens grow as long as the ensemble keeps its data.
//
// # How it works
//
// A lock is a container node, which ZooKeeper collects when it is empty, and an
// acquisition an ephemeral, sequential node below it:
//
//	/holdfast/locks/order:123/x.0.1.LEASE.SESSION.0000000012
//	                          mode, limit, permits, lease, session, place
//	/holdfast/sessions/SESSION    is written by every renewal
//	/holdfast/notices/SESSION     is written by a break, and watched by the session
//
// Who is out. Nobody is overtaken, so who is out is always the front of the line, as far
// as it fits. It follows from the names alone: no node says it, and nothing has to be
// written when a lock is handed over. An acquisition is one transaction, which makes the
// node and writes to its lock: the answer tells how many there are now. Who is the only
// one has the lock; others look at the line.
//
// Token. The ID of the transaction that made the node (czxid): the leader counts them,
// over all its terms. Not the sequence number, which begins again with the container.
//
// Group commit. What the goroutines of a session write while one transaction is under way
// goes in the next one: many locks are taken and given back with one request, and one
// entry of the log. Two that join one line never share one, since their tokens would be
// the same. When the ensemble denies a transaction, nothing of it was done, and each part
// is written by itself; when its answer is lost, each caller finds out by itself.
//
// A lost reply. The lease ID is in the node's name. Who asks again looks for it first.
// There is never more than one create of a lease under way.
//
// Hand-over. Within a session it takes no watch and no look: the transaction that deletes
// the holder's node checks that the node right behind it is there, and that one has the
// lock. A waiter behind another session watches the one node whose end it waits for: one
// watch fires for each release, and where that was the only one before it, it has the lock
// without a look. Who waits for long watches in any case. Those who wait for permits look at every change of their line, because
// any of the permits may do.
//
// Sessions. A session of the contract is a ZooKeeper session with a connection of its
// own. A renewal is a write, because only the leader knows whether a session lives: a
// server that has lost its leader goes on answering for a while. Servers tell the leader
// who is alive every half tick, and one may die before it has told: so the session is
// asked to live for one and a half ticks longer than its TTL, and sends something every
// half tick. After a silence of more than a tick a renewal waits until the leader has been told:
// three quarters of a tick. It is ended here when nobody has renewed it for its TTL. When the process
// is dead it ends by itself, which takes the TTL and up to three and a half ticks
// (Capabilities.ExpiryLag, 7 s with ZooKeeper's default of 2 s).
//
// Break. A transaction deletes the nodes of the holders, or of as many of them as go into
// it, and writes it to the notices of their sessions. Who they are is fixed by the first
// look. The new token is the one after the greatest of theirs.
//
// # Requires
//
// ZooKeeper 3.5 or newer, for containers. The ensemble's tickTime and maxSessionTimeout,
// where they are not the defaults: they bound the TTL, which is at most
// maxSessionTimeout less one and a half ticks (37 s by default). All of create, read,
// write and delete below the path.
//
// # URL
//
//	zookeeper://host1:2181,host2:2181,host3:2181
//	zookeeper://user:password@host/team/locks?tick=2s&max_session=5m
//
// With a user everything is made for that user only (scheme digest). TLS is possible
// with [Config].Dial.
//
// # When the lock is lost
//
// When its session is: not renewed for its TTL, or ended by the ensemble. When an
// operator breaks it, or deletes its node. The holder hears of a break at once.
//
// # Do not use when
//
// Leases have to outlive their process, as those over HTTP do. Every waiter of a
// semaphore wakes at each of its releases: hundreds of waiters for permits of one lock
// are a herd.
package zklock
