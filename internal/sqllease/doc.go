// Package sqllease is the common part of backends that keep leases in the tables of a database:
// the rules, group commit, waiters, and periodic maintenance. What differs from one database to
// another is behind [Store].
//
// One transaction. A transaction that changes the leases of a lock locks the row of that lock
// first. It reads the leases in a separate statement, which sees what was committed while it
// waited for the row. The rules are applied here, and the changes are sent with the commit.
//
// Short way. A lock that is free and wanted by one client is acquired, and released, on a condition,
// in one round trip. A store may keep its lease in the row of the lock then: the lock is thin, and
// a transaction on it inflates it. See Quick.
//
// Group commit. Requests that arrive while transactions are in progress share the next one, and a
// transaction waits a moment for callers that are about to send a request. Rows are locked in the
// order of their names, so transactions do not wait in a circle.
//
// Long queues. Only the front of a long queue is read, and the rest is counted. Where more has to
// be known the transaction is repeated with the whole queue.
//
// Expiry. A lease under a session is held for as long as the row of the session says so. What
// seems to have expired is locked and read again before anything is concluded from it: it may
// have been renewed, and the renewal may still be on its way to the disk. A read without locks, for
// waiters and listeners, only tells of what a transaction has ended.
//
// Hand-over. The transaction that frees a lock grants it to the next waiters in the queue. Where
// the database can notify, the commit notifies the value that waits. Where it cannot, that value
// polls: rarely, while all that it waits for is held under sessions of its own.
package sqllease
