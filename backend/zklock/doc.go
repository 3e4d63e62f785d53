// Package zklock keeps leases in a ZooKeeper ensemble (3.5 or newer; tested with 3.8). It uses
// github.com/go-zookeeper/zk.
//
// # Guarantees
//
// C1 to C14 as package backend defines them, except for what [Backend.Capabilities] does not claim:
// there are no timed leases and no events. Leases end with the session, and a session with the backend value that opened it (Capabilities.Bound): another
// process cannot continue it.
//
// A majority of the ensemble decides; a minority that dies or is cut off loses nothing. Tokens grow
// as long as the ensemble keeps its data.
//
// # How it works
//
// A lock is a container node, which ZooKeeper collects when it is empty, but only if it had a child. So
// it is made in one transaction with the first acquisition. An acquisition is an ephemeral, sequential
// node below it:
//
//	/holdfast/locks/order:123/x.0.1.LEASE.SESSION.0000000012
//	                          mode, limit, permits, lease, session, place
//	/holdfast/sessions/SESSION    is written by every renewal
//	/holdfast/notices/SESSION     is written by a break, and watched by the session
//
// Holders. No waiter is overtaken, so the holders are always the front of the queue, as far as it
// fits. They follow from the names alone: no node records them, and a hand-over writes nothing. An
// acquisition is one transaction, which makes the node and writes to its lock: the answer reports
// how many nodes there are now. If the new node is the only one, it has the lock; otherwise the
// acquisition reads the queue.
//
// Token. The ID of the transaction that made the node (czxid): the leader counts them, over all its
// terms. It is not the sequence number, which starts again with the container.
//
// Places. ZooKeeper counts the nodes that a container ever had, and stops at 2147483647: later ones
// would have equal places. So a container gives 2^30 places, and a node beyond them does not count: its
// client deletes it. When those with a place have left, a client deletes the container, and places begin
// at 0 in the next one.
//
// Group commit. Writes by the goroutines of a session while one transaction is under way go in the
// next one: many locks are acquired and released with one request, and one entry of the log. Two
// that join the same queue never share one, since their tokens would be the same. If the ensemble
// denies a transaction, none of it was done, and each part is written by itself. If the answer is
// lost, each caller determines its own outcome.
//
// A lost reply. The lease ID is in the node's name. A retry looks for it first. A lease never has
// more than one create under way.
//
// Hand-over. Within a session it needs neither a watch nor a read: the transaction that deletes the
// holder's node checks that the node right behind it exists, and then that one has the lock. A
// waiter behind another session watches the one node whose end it waits for: one watch fires for
// each release, and where that was the only node before it, the waiter has the lock without a read.
// A waiter that waits for long uses a watch in any case. All waits for one node share a watch.
// Waiters for permits read at every change of their queue, because any of the permits may do. Those of one client
// read together.
//
// Sessions. A session of the contract is a ZooKeeper session with a connection of its own. A
// renewal is a write, because only the leader knows whether a session lives: a server that has lost
// its leader still answers reads for a while. Servers report to the leader every half tick which
// sessions are alive, and a server may die before its report. So the ZooKeeper session is requested
// to live for one and a half ticks longer than its TTL, and sends something every half tick. After
// a silence of more than a tick a renewal waits until the leader has been told: three quarters of a
// tick. The session is ended here when it was not renewed for its TTL. If the process is dead the
// session ends by itself, which takes the TTL and up to three and a half ticks
// (Capabilities.ExpiryLag, 7 s with ZooKeeper's default of 2 s).
//
// EndSession succeeds once the ensemble has confirmed it. If it does not, the leases may be held
// until the session expires there. A second EndSession checks whether it has.
//
// Break. A transaction deletes the nodes of the holders, or of as many of them as fit into it, and
// writes the break to the notices of their sessions. The first read fixes the victims. The new
// token is the one after the greatest of theirs. A lease whose loss was reported is never granted
// again.
//
// Deleted nodes. Every half tick a session checks four of its leases, in turn: a lease whose node was
// deleted by hand is reported as gone, among 4n leases within n half ticks. A session whose notices were
// deleted ends.
//
// # Requires
//
// ZooKeeper 3.5 or newer, for containers. The ensemble's tickTime and maxSessionTimeout, where they
// are not the defaults: they bound the TTL, which is at most maxSessionTimeout less one and a half
// ticks (37 s by default). The permissions create, read, write and delete below the path.
//
// # URL
//
//	zookeeper://host1:2181,host2:2181,host3:2181
//	zookeeper://user:password@host/team/locks?tick=2s&max_session=5m
//
//	zookeeper://host:2281?ca=ca.pem&server_name=zookeeper
//
// With a user, all nodes are made for that user only (scheme digest). Where a host is not this machine the
// connections have TLS, and certificates are verified; tls=false turns that off.
//
// # When the lock is lost
//
// When its session is lost: not renewed for its TTL, or ended by the ensemble. When an operator
// breaks the lock, or deletes its node. The holder is notified of a break immediately, and notices
// that its node was deleted within half a tick for every four leases that it holds.
//
// # Do not use when
//
// Leases must outlive their process, as those over HTTP do, or hundreds of clients wait for permits
// of one lock: every waiter of a semaphore wakes at each release.
package zklock
