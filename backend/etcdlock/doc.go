// Package etcdlock keeps leases in etcd 3.4 or newer: a cluster of its own, one that
// the program has a client for, or the one in the process (server/embedded).
//
// # Guarantees
//
// All of C1 to C14, as package backend has them, through the crash, partition and
// pause of any minority of the members. Every capability is claimed. Tokens are
// revisions of etcd: they rise for all locks together, and fall back only when a
// snapshot is restored without raising the revision (etcdutl snapshot restore
// --bump-revision --mark-compacted).
//
// Times are in whole seconds, rounded up: a lease of 2.5 s ends after 3 s. One that
// nobody renews is free ExpiryLag, 2 s, after its TTL at the latest, as long as the
// leader of etcd stays. A new leader gives every lease its whole TTL again.
//
// # How it works
//
// The keys, below the prefix; ␀ is a NUL, which no name can hold:
//
//	q/<name>␀x!                an exclusive lease that found nobody else
//	q/<name>␀x<slot>           another exclusive lease, out or in line
//	q/<name>␀s<limit><slot>    a shared one, with its limit in 6 hex digits
//	q/<name>␀j<slot>           one that joined another by re-entry
//	q/<name>␀y<lease>          a tombstone: the lease is over
//	q/<name>␀z                 the newest break, for watchers
//	c/<name>␀<lease>           the claim: the lease exists, and where
//	s/<session>␀               a session, on the etcd lease that is its life
//	s/<session>␀<lease>        a lease of it was broken, and why
//	d/<session>                there is, or was, such a session
//	l/<etcd lease>             ends with an etcd lease that timed leases share
//
// The head. Where a lock has no entry at all, an exclusive lease puts one, and nothing
// else: two writes for a lock that nobody else wants, one to take it and one to give it
// back. Such an entry has a key of its own and no claim. There is one at most, older than
// all others, so that it is enough for everything else that makes an entry to see that
// the one at the head is not its own: asked twice is granted once all the same.
//
// The line. Behind others an acquisition puts its entry and its claim, and reads the
// entry that is last, in one transaction: it waits for that one to go. A shared one asks
// whether anything is in the way. The place, and the token, is the create revision of
// the entry. Who holds the lock is not written anywhere: it is the longest part of the
// line, from its head, that fits together (backend.Admit), so that a hand-over needs no
// write, and everybody who reads the same revision agrees.
//
//	absent ──put──▶ in line ──all before it fit──▶ out ──delete──▶ absent
//	                   │                            │
//	                   └── delete, or the end of ───┘
//	                       the etcd lease
//
// The conditions of the transaction carry the rules: no claim, nor its own entry at the
// head (asked twice is granted once), no tombstone (what was abandoned stays so), the
// session's record is there, and for a shared lease no entry with another limit. An
// acquire that does not wait puts its entry only where nothing is in the way; a semaphore
// is counted first, and then the condition is that nothing was added since.
//
// Re-entry. A lease that joins another has the create revision of that one in its
// value, and ranks with it, also when the first is released: those in line wait for
// all of them.
//
// Slots. Entries use the same few keys again and again, and the claim ties one to its
// lease. etcd's index keeps every key that was ever used until it compacts, and reading
// a range passes over the dead ones.
//
// Sessions. A session is an etcd lease, with a random ID for each attempt to open it;
// the transaction that makes the record decides which is the one. Everything of the
// session hangs on that lease and ends with it. Renewal is one keep-alive, and then one
// read that proves that what was extended is the session's, and tells of broken leases
// should the push have failed. That a session was opened is remembered longer than it
// lived, so that its ID never revives.
//
// Leaders that were deposed. One that is stopped, and goes on when there is another, ends
// the leases that it knows, though they were renewed with the other one, and acknowledges
// renewals of which that one hears nothing. So a renewal counts only where the read after
// it finds the same term of etcd, and only on an etcd lease that was made in this term:
// after each change of the leader the first renewal of a session moves it, with all that
// it has, to a new etcd lease, in two requests and one more for each 60 keys. A timed lease
// that is renewed moves as well.
//
// Timed leases. While one waits, its entry hangs on the session; at the head of the line
// it moves to an etcd lease that is none of a session, and its TTL counts from then. A
// crash in between is the death of the session. With a TTL of up to five minutes that is
// an etcd lease which those of one second share: it lives for that second longer than
// they have to, and is neither renewed nor revoked, ever, so that each of them ends when
// it has to and none sooner. A renewal therefore moves one that shares: of those that
// are renewed together, some to an etcd lease of their own, which is what is renewed
// from then on, and the others to one that is shared again. So a short lock costs two
// writes, and not the four that an etcd lease for each would cost, and a long one is
// soon renewed without any. A renewal with another TTL moves a lease as well.
//
// Waiting. An exclusive entry waits for the deletion of the entry right before it, a
// shared one for that of the last exclusive one before it, or, in a semaphore, for any.
// One watch for each lock and backend value tells, of that one key while there is one
// waiter, and all watches share a stream. Who is woken reads again: only the entry that
// is there, at a revision at which all before it fit, is granted. A waiter whose watch
// broke, or was compacted, reads again as well, and so does everybody every 15 s.
//
// Hand-over. In one process nobody has to ask: a release also compares whether it is the
// turn of the one right behind it, which is so when that entry and its session are there
// and nobody joined the lease. What is made later comes later, so nothing else can stand
// between the two.
//
// Group commit. Requests that come while two transactions are under way, or one with many
// in it, travel together in the next: up to 64, never two entries of one lock, which would share a revision. One
// that leaves may travel with one that joins, and who joins a line in which others of
// this process wait waits up to 5 ms for that: a lock in demand costs one transaction for
// each hand-over.
//
// Remembering. Tombstones, and the memory of sessions, hang on an etcd lease of 15
// minutes that is used for 5 and never renewed: they are there for 10 at least, and
// nothing stays for ever. An election gives every lease of etcd its whole time again: where
// there is one in each quarter of an hour they stay until there is none. A lease whose acquire ended in an unknown outcome is buried
// when it is released: its first request may still be on its way.
//
// # Requires
//
// etcd 3.4 or newer. Older than 3.4.42, 3.5.28 and 3.6.9, a member that was paused can
// answer from the past: New warns in the log. History has to be compacted, as for any
// use of etcd (--auto-compaction-retention). With authentication: a role that may read
// and write below the prefix, and nothing else. MinTTL is 2 s, because etcd keeps no lease shorter than one and a half of its
// election timeouts; with a shorter one, min_ttl=1s will do.
//
// A client given to New should notice dead connections: set DialKeepAliveTime to 10 s.
//
// # URL
//
//	etcd://[user:password@]host[:2379][,host...][?prefix=holdfast&timeout=5s&min_ttl=2s]
//	etcds://host?ca=ca.pem&cert=client.pem&key=client.key&server_name=name
//
// # When the lock is lost
//
// When the session, or the timed lease, is not renewed in time; when an operator breaks
// the lock; when somebody deletes its key: the first two are pushed, the last is told by
// the next renewal. A program that keeps its data in the same etcd can compare the token
// with the create revision in its transactions, and so cannot do harm after a loss.
//
// # Do not use when
//
// Leases shorter than a second are needed, or thousands of timed leases with a TTL above
// five minutes are taken each second: each costs etcd two writes more than others.
package etcdlock
