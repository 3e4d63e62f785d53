// Package etcdlock keeps leases in etcd 3.4 or newer: in a cluster of its own, or in one that the
// program already has a client for.
//
// # Guarantees
//
// C1 to C14 as package backend defines them, through the crash, partition and pause of any minority
// of the members. Every capability is claimed. Tokens are revisions of etcd: they rise for all
// locks together, and fall back only when a snapshot is restored without raising the revision
// (etcdutl snapshot restore --bump-revision --mark-compacted).
//
// Times are in whole seconds, rounded up: a lease of 2.5 s ends after 3 s. A lease that is not
// renewed is free at the latest ExpiryLag, 2 s, after its TTL, as long as the leader of etcd stays.
// A new leader gives every lease its whole TTL again.
//
// # How it works
//
// The keys, below the prefix; ␀ is a NUL, which no name can contain:
//
//	q/<name>␀x!                an exclusive lease that found no other entry
//	q/<name>␀x<slot>           another exclusive lease, held or waiting
//	q/<name>␀s<limit><slot>    a shared one, with its limit in 6 hex digits
//	q/<name>␀y<lease>          a tombstone: the lease has ended, or was broken, and why
//	q/<name>␀z                 the newest break, for watchers
//	c/<name>␀<lease>           the claim: the lease exists, and where
//	s/<session>␀               a session, on the etcd lease that keeps it alive
//	s/<session>␀<lease>        a lease of the session was broken, and why
//	d/<session>                the session exists, or existed
//	l/<etcd lease>             ends with an etcd lease that timed leases share
//
// The head. Where a lock has no entry at all, an exclusive lease puts one, and nothing else: an
// uncontended lock costs two writes, one to acquire it and one to release it. Such an entry has a
// key of its own, and a claim only if it is on an etcd lease of its own. There is at most one, and
// it is older than all others. So every other change that makes an entry only has to check that the
// entry at the head is not its own: a repeated request is still granted once.
//
// The queue. Behind other entries an acquisition puts its entry and its claim, and reads the last
// entry, in one transaction: it waits for that entry to be deleted. A shared acquisition checks
// whether anything is in the way. The place in the queue, and the token, is the create revision of
// the entry. The holder is not recorded anywhere. The holders are the longest part of the queue,
// from its head, that fits together (backend.Admit). So a hand-over needs no write, and all
// clients that read the same revision agree.
//
//	absent ──put──▶ queued ──all before it fit──▶ held ──delete──▶ absent
//	                   │                            │
//	                   └── delete, or the end of ───┘
//	                       the etcd lease
//
// The conditions of the transaction enforce the rules: there is no claim, nor its own entry at the
// head (a repeated request is granted once); there is no tombstone (what was abandoned stays
// abandoned); the record of the session exists; and, for a shared lease, there is no entry with
// another limit. An acquire that does not wait puts its entry only where nothing is in the way. For
// a semaphore, the permits are counted first, and the condition is that nothing was added since.
//
// Slots. Entries reuse the same few keys, and the claim ties a key to its lease. etcd's index keeps
// every key that was ever used until it compacts, and a range read passes over the dead ones.
//
// Sessions. A session is an etcd lease, with a random ID for each attempt to open it. The
// transaction that makes the record decides which attempt becomes the session. Everything that the
// session owns is attached to that etcd lease and ends with it. A renewal is one keep-alive,
// followed by one read. The read proves that the extended etcd lease is the session's, and reports
// broken leases in case the push failed. A record that the session was opened outlives the
// session, so that its ID never revives.
//
// Deposed leaders. A leader that is stopped, and resumes when there is another, ends the leases
// that it knows, even those that were renewed with the new leader, and acknowledges renewals that
// the new leader never hears of. So a renewal counts only where the read after it finds the same
// term of etcd, and only on an etcd lease that was made in this term. After each change of the
// leader the first renewal of a session moves the session, with everything it owns, to a new etcd
// lease, in two requests and one more for each 60 keys. A timed lease that is renewed moves as
// well.
//
// Timed leases. While a timed lease waits, its entry is attached to the session's etcd lease. At
// the head of the queue it moves to an etcd lease that belongs to no session, and its TTL counts
// from then. A crash in between ends it with the session. With a TTL of up to five minutes, the
// leases granted within one second share that etcd lease. It lives for that second longer than they
// need, and is never renewed or revoked, so that each of them ends when it must and not sooner. A
// renewal therefore moves a lease that shares one. Of the leases that are renewed together, some
// move to an etcd lease of their own, which is renewed from then on, and the others move to another
// shared one. So a short lock costs two writes, instead of the four that an etcd lease for each
// would cost, and a long one is soon renewed without any. A renewal with another TTL moves a lease
// as well. It announces that in the entry first, so that a later renewal moves the lease, too: a
// move that is late, because its process was stopped, then finds another entry and does nothing.
//
// Waiting. An exclusive entry waits for the deletion of the entry right before it. A shared one
// waits for that of the last exclusive entry before it, or, in a semaphore, for any deletion. Each
// backend value has one watch for each lock, on that one key while there is one waiter, and all
// watches share a stream. A waiter that is woken reads again: only an entry that exists, at a
// revision at which all before it fit, is granted. A waiter whose watch broke, or was compacted,
// reads again as well, and so does every waiter every 15 s.
//
// Hand-over. Within one process no read is needed. A release also checks whether the entry right
// behind it is next, which is so if that entry and its session exist. An entry made later ranks later, so nothing else can stand between the two.
//
// Group commit. Requests that arrive while a transaction is in progress travel together in the next
// one: up to 64, but never two entries of one lock, which would share a revision. A release may travel with an acquire that joins the queue. An
// acquire that joins a queue in which others of this process wait is held back up to 5 ms for
// that: a contended lock costs one transaction for each hand-over.
//
// Remembering. Tombstones, and the records of opened sessions, are attached to an etcd lease of 15
// minutes that is used for 5 and never renewed. So they exist for at least 10 minutes, and not for
// ever. An election gives every lease of etcd its whole time again: while there is an election in
// each quarter of an hour, they stay. A lease whose acquire had an unknown outcome gets a tombstone
// when it is released, because its first request may still be on its way.
//
// # Requires
//
// etcd 3.4 or newer. Before 3.4.42, 3.5.28 and 3.6.9, a member that was paused can return stale
// reads: New logs a warning. The history must be compacted, as for any use of etcd
// (--auto-compaction-retention). With authentication: a role that may read and write below the
// prefix, and nothing else. MinTTL is 2 s, because etcd keeps no lease shorter than one and a half
// of its election timeouts; with a shorter election timeout, min_ttl=1s will do.
//
// A client given to New should detect dead connections: set DialKeepAliveTime to 10 s.
//
// # URL
//
//	etcd://[user:password@]host[:2379][,host...][?prefix=holdfast&timeout=5s&min_ttl=2s]
//	etcds://host?ca=ca.pem&cert=client.pem&key=client.key&server_name=name
//
// # When the lock is lost
//
// When the session, or the timed lease, is not renewed in time; when an operator breaks the lock;
// when its key is deleted by another client. The first two are pushed; the next renewal reports the
// last. A program that keeps its data in the same etcd can compare the token with the create
// revision in its transactions, and so cannot do harm after a loss.
//
// # Do not use when
//
// Leases shorter than a second are needed, or thousands of timed leases with a TTL above five
// minutes are acquired each second: each of these costs etcd two more writes than other
// leases.
package etcdlock
