// Package mysqllock keeps leases in a MariaDB (10.6 or newer; tested with 10.11) or MySQL
// (8.0 or newer; the suite was run by hand with 9.7.4) database. It uses github.com/go-sql-driver/mysql.
//
// There are two backends here. The following is about the tables of leases. [UserLocks] keeps
// locks as the servers' own user locks (GET_LOCK), and documents its own guarantees.
//
// # Guarantees
//
// All of C1 to C14, as package backend defines them, for as long as one primary keeps what it has
// committed. Nothing is pushed, and there is no Watch: the servers have no notifications of
// changes. Leases and tokens survive crashes and restarts of the server, and of all clients. A
// fail-over to a replica that replicates asynchronously may lose the newest grants, and restoring
// a backup loses all grants since then: a lock may then be granted twice.
// With innodb_flush_log_at_trx_commit=2 a crash of the machine does the same. With 0 a crash of
// the server would: that is refused.
//
// A lease is measured on the server's clock (UTC_TIMESTAMP), which is a wall clock. Setting it
// ahead ends leases early, and setting it back makes them last longer; so does a fail-over to a
// server whose clock is ahead, or behind. Tokens grow all the same.
//
// Released leases are not remembered. Abandoned leases, and sessions that have ended, are
// remembered for ten minutes. The row of a lock that was not used for ten minutes is deleted; the
// next number of its counter is kept for all locks together.
//
// # How it works
//
// The rules are those of pglock, from the same code: the row of a lock is locked, its leases are
// read in a separate statement, the rules are applied here, and the changes are sent with the
// COMMIT. Requests that arrive while transactions are in progress share the next one.
//
//	callers ──► queue ──► BEGIN, lock rows, clock, leases ──► rules ──► changes, COMMIT ──► answers
//	                      one round trip                                one round trip
//
// An uncontended lock is acquired, and released, in one round trip. It is thin: its only lease is in
// the row of the lock, and one UPDATE, which is a transaction by itself, takes or releases up to 128
// such locks. Whatever else a client wants of a thin lock inflates it: the lease moves to the table of
// leases, where it is as before. A lock that is free is thin again.
//
// Statements of a round trip are sent together (multi-statements), with their arguments written
// into them by the client library: texts as binary literals. Names and IDs are VARBINARY: nothing
// folds them. Times are numbers, of microseconds in UTC.
//
// Isolation is READ COMMITTED, set for the session: each statement sees what was committed before
// it, and only rows that are named by their key are locked. So is the time zone, UTC, and all else that
// changes what a statement returns. Deadlocks are retried.
//
// Hand-over. The transaction that frees a lock grants it to the next waiters in the queue, and
// drops those that are dead. A waiter in the same process is woken immediately. A waiter in
// another process polls: a value that has waiters reads for all of them in one round trip, after
// an eighth of the time in which nothing changed, but not before 2 ms and at the latest after 250
// ms, plus jitter. So polling prolongs a wait by about an eighth, and a value at rest polls four
// times a second, whatever the number of its waiters. So does one that waits for what is held
// under its own sessions: only it can release that. A value without waiters does not poll.
//
// The disk. InnoDB shows a commit to other clients before its log is written, and a crash then
// undoes the commit. So an answer that depends on a read, such as the grant that a waiter
// finds, is returned only after the value has committed a write of its own, which makes all
// before it in the log durable: a row in the table of abandoned leases, written once for all
// that a read has found.
//
// Numbers. Tokens, and places in the queue, come from the counter in the lock's row. A number is
// above the last one and above the microseconds of the server's clock, so that numbers also grow
// when the tables are dropped or restored from an old copy, unless the clock is behind the last one.
//
// Stopped clients. A client that is stopped in the middle of a transaction keeps the rows that
// it has locked for six seconds. Then the server ends its connection (wait_timeout, set for
// the session).
//
// # Requires
//
// InnoDB, and the primary: a server with read_only is refused, also for users who may write
// there. One server: a node of a Galera cluster (wsrep_on) is refused, because its locks are its
// own until the commit, and such clusters were seen to lose what they had committed. A binary log
// of rows, or mixed; with statements the server refuses READ COMMITTED, which is backend.ErrRefused. A user who may CREATE
// tables in the database, or one with the privileges that [Backend.Migrate] lists. Connections:
// up to max_conns (8). A proxy in between must keep a connection for a client whose session has
// settings, as ProxySQL and MaxScale do.
//
// # URL
//
//	mysql://user:password@host:3306/database
//	mysql://user:password@host/database?tls=true&prefix=locks_&max_conns=4
//
// Parameters: tls is true (the default: encrypted and verified), preferred (the default where the host is
// this machine: encrypted where the server can, and not verified), skip-verify or false; ca is a file of certificates (PEM) to trust
// in place of the system's, which makes tls true; prefix is that of the tables
// (holdfast_); max_conns; connect_timeout in seconds (5); socket is the path of a socket,
// in place of the host. Others are an error. No environment and no file is read.
//
// # When the lock is lost
//
// When its session, or a timed lease, is not renewed in time; when an operator breaks it. The
// holder learns of a break with its next renewal.
//
// # Do not use when
//
// The database is near its limits: every grant and every release is a commit. When hand-overs
// between processes must take less than a few milliseconds. When the work that the lock
// protects is in this same database: a row lock or a unique key in the same transaction is
// exact, and needs no lease.
package mysqllock
