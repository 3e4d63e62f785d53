// Package pglock keeps leases in a PostgreSQL database (12 or newer; tested with 15). It uses
// github.com/jackc/pgx.
//
// There are two backends here. The following is about the tables of leases. [Advisory] keeps
// locks as PostgreSQL's own advisory locks, and documents its own guarantees.
//
// # Guarantees
//
// All of C1 to C14, as package backend defines them, for as long as one primary keeps what it has
// committed. Every capability is claimed. Leases and tokens survive crashes and restarts of the
// server, and of all clients. A fail-over to a standby that replicates asynchronously may lose
// the newest grants, and restoring a backup loses all grants since then: a lock may then be
// granted twice. Use synchronous replication where that matters.
//
// A lease is measured on the server's clock (clock_timestamp), which is a wall clock. Setting it
// ahead ends leases early, and setting it back makes them last longer; so does a fail-over to a
// server whose clock is ahead, or behind. Tokens grow all the same.
//
// Released leases are not remembered. Abandoned leases, and sessions that have ended, are
// remembered for ten minutes. The row of a lock that was not used for ten minutes is deleted; the
// next number of its counter is kept for all locks together.
//
// # How it works
//
// There are four tables: locks, with one row and one counter for each lock; leases, which are
// held or in the queue; sessions; and tombs, which list what must not come back. A table of
// losses reports to holders what an operator broke, and which timed leases expired.
//
// One transaction. A transaction that changes the leases of a lock locks the row of that lock
// first (SELECT ... FOR UPDATE, after an insert where it does not exist). Then it reads the
// leases in a separate statement, which sees what was committed while it waited for the row; a
// single statement would not (READ COMMITTED). The rules are applied here, and the changes are
// sent with the COMMIT: two round trips, whatever the request.
//
//	callers ──► queue ──► BEGIN, lock rows, clock, leases ──► rules ──► changes, NOTIFY, COMMIT ──► answers
//	                      one round trip                                one round trip
//
// One round trip. Most locks are free when they are acquired, and have no waiters when they are
// released. So these two are tried first as one statement each, which writes the lease into the row
// of the lock, or clears it: the lock is thin. A transaction of the other kind moves the lease to
// the table of leases. Requests that fail this way are repeated in two round trips, and so is
// everything for that lock until it is found free again.
//
// Group commit. Requests of one backend value that arrive while transactions are in progress
// share the next one, with its round trips and its wait for the disk. Rows are locked in the
// order of their names, so transactions do not deadlock.
//
// Expiry. A lease under a session is held for as long as the row of the session says so. What
// seems to have expired is locked and read again before anything is concluded from it: it may
// have been renewed. A renewal of a session is one update of one row, however many leases it
// holds.
//
// Hand-over. The transaction that frees a lock grants it to the next waiters in the queue, drops
// those that are dead, and notifies the channel of the backend value that waits. The notification
// comes with the commit and contains the grant. A waiter sends nothing. For holders that die
// there is one timer for all waiters of a value, set to when the first of the leases before them
// can end, and at most to 30 s. Every value has one connection that listens, which the kernel
// watches. When that is lost it is replaced, and everything is read.
//
// Break. It works in the same way, and the sessions of the victims are notified.
//
// Numbers. Tokens, and places in the queue, come from the counter in the lock's row. A number is
// above the last one and above the microseconds of the server's clock, so that numbers also grow
// when the tables are dropped or restored from an old copy, unless the clock is behind the last one.
//
// Stopped clients. A client that is stopped in the middle of a transaction keeps the rows that
// it has locked for five seconds. Then the server ends its connection
// (idle_in_transaction_session_timeout).
//
// # Requires
//
// PostgreSQL 12 or newer, a database in UTF-8, and the primary: a standby is refused. A role that
// may create a schema, or one with the privileges that [Backend.Migrate] lists. A server-wide
// synchronous_commit=off is turned on again for our transactions. Any other value is kept, as it
// was when a connection was established. Where commits wait for standbys, so does every answer,
// also one that depends on a read. Connections: up to max_conns (8), one more that listens, and
// one for each Watch.
//
// A pooler that gives every transaction another connection (PgBouncer's transaction mode) cannot
// pass notifications on. With listen=false none are requested: waiters poll every half second,
// and there are no prepared statements, no pushes of losses and no Watch. Without listen=false
// PgBouncer in its default settings is refused, with ErrPooler, in any mode. A value that listens
// through a pooler that lets it connect (ignore_startup_parameters) and passes nothing on notices
// that, logs it, and polls every half second, too.
//
// # URL
//
//	postgres://user:password@host:5432/database?sslmode=verify-full
//	postgres://host1,host2/database?schema=locks&max_conns=4&listen=false
//
// Our parameters: schema, in which the tables are (holdfast); max_conns; listen. Those of libpq:
// application_name, connect_timeout, host, passfile, port, service, servicefile, sslcert,
// sslcertmode, sslkey, sslmode, sslnegotiation, sslpassword, sslrootcert, sslsni and
// target_session_attrs (read-write). sslmode is verify-full unless all hosts are this machine or it is
// set, also by PGSSLMODE or a service: disable, allow, prefer and require verify nothing. Others are an error. The environment (PGHOST, PGPASSWORD and
// so on) and ~/.pgpass are read as libpq does.
//
// # When the lock is lost
//
// When its session, or a timed lease, is not renewed in time; when an operator breaks it. The
// holder is notified of a break immediately.
//
// # Do not use when
//
// The database is near its limits: every grant and every release is a commit, and notifications
// of all databases of a server are committed one after the other. When the work that the lock
// protects is in this same database: a row lock or a unique key in the same transaction is exact,
// and needs no lease.
package pglock
