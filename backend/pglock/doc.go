// Package pglock keeps leases in a PostgreSQL database (12 or newer; tested with 15). It
// uses github.com/jackc/pgx.
//
// There are two backends here. What follows is about the tables of leases; [Advisory] keeps
// locks as PostgreSQL's own advisory locks, and says itself what it promises.
//
// # Guarantees
//
// All of C1 to C14, as package backend has them, for as long as one primary keeps what
// it has committed. Every capability is claimed. Leases and tokens survive crashes and
// restarts of the server, and of all clients. A fail-over to a standby that replicates
// asynchronously may lose the newest grants, and a backup that is put back loses all
// since then: a lock may then be granted twice, and tokens may repeat. Use synchronous
// replication where that matters.
//
// A lease is measured on the server's clock (clock_timestamp), which is a wall clock:
// setting it ahead ends leases early, and setting it back makes them last longer; so does
// a fail-over to a server whose clock is ahead, or behind. Tokens do not come from it.
//
// Released leases are not remembered. Abandoned leases, and sessions that have ended,
// are remembered for ten minutes. The row of a lock that nobody has used for ten minutes
// is deleted; the next number of its counter is kept for all locks together.
//
// # How it works
//
// Four tables: locks, with one row and one counter for each lock; leases, that are out
// or in line; sessions; and tombs, which say what may not come back. A table of losses
// tells holders what an operator broke.
//
// One transaction. Who changes the leases of a lock has its row locked (SELECT ... FOR
// UPDATE, after an insert where it is not there). Then it reads the leases in a statement
// of its own, which sees what was committed while the row was waited for; a single
// statement would not (READ COMMITTED). The rules are applied here, and the changes are
// sent with the COMMIT: two round trips, whatever was asked for.
//
//	callers ──► queue ──► BEGIN, lock rows, clock, leases ──► rules ──► changes, NOTIFY, COMMIT ──► answers
//	                      one round trip                                one round trip
//
// One round trip. Most locks are free when they are asked for, and nobody waits when
// they are given back. So these two are tried first as two statements in one round trip:
// lock the row; then insert or delete the lease, where nothing stands against it. What
// was not done so is done the long way, and so is everything for that lock until it is
// found free again.
//
// Group commit. Requests of one backend value that come while transactions are under way
// share the next one, so that they share its round trips and its wait for the disk. Rows
// are locked in the order of their names: transactions do not wait in a circle.
//
// Over. A lease under a session is out for as long as the row of the session says so.
// What seems to be over is locked and looked at again before anybody concludes that:
// it may have been renewed. A renewal of a session is one update of one row, whatever
// it holds.
//
// Hand-over. The transaction that frees a lock grants it to those that are next in line,
// drops those that are dead, and notifies the channel of the backend value that waits.
// The notification comes with the commit and tells the grant. A waiter sends nothing.
// For holders that die there is one timer for all waiters of a value, set to when the
// first of the leases before them can end, and at most to 30 s. Every value has one
// connection that listens, which the kernel watches; when that is lost it is made again,
// and everything is looked at.
//
// Break. The same, and the sessions of the victims are notified.
//
// Numbers. Tokens, and places in line, come from the counter in the lock's row. They
// begin at the microseconds of the server's clock of when the tables were made, so that
// they also grow when the tables are dropped and made again.
//
// Sleepers. A client that is stopped in the middle of a transaction keeps the rows that
// it has locked for five seconds; then the server ends its connection
// (idle_in_transaction_session_timeout).
//
// # Requires
//
// PostgreSQL 12 or newer, a database in UTF-8, and the primary: a standby is refused.
// A role that may create a schema, or one that has what [Backend.Migrate] says. A
// server-wide synchronous_commit=off is turned on again for our transactions; what else
// it says is kept, as it was when a connection was made. Where commits wait for standbys, so
// does every answer, also one that rests on what was read. Connections: up to max_conns (8), one more that listens, and one for
// each Watch.
//
// A pooler that gives every transaction another connection (PgBouncer's transaction
// mode) cannot pass notifications on. With listen=false none are asked for: waiters look
// every half second, and there are no prepared statements, no pushes of losses and no
// Watch. Without it PgBouncer in its default settings is refused, with ErrPooler, in any
// mode. A value that listens through a pooler that lets it connect (ignore_startup_parameters)
// and passes nothing on notices, says so in the log, and looks every half second, too.
//
// # URL
//
//	postgres://user:password@host:5432/database?sslmode=verify-full
//	postgres://host1,host2/database?schema=locks&max_conns=4&listen=false
//
// Our parameters: schema, in which the tables are (holdfast); max_conns; listen. Those of
// libpq: application_name, connect_timeout, host, passfile, port, service, servicefile,
// sslcert, sslcertmode, sslkey, sslmode, sslnegotiation, sslpassword, sslrootcert, sslsni
// and target_session_attrs (read-write). Others are an error. The environment (PGHOST,
// PGPASSWORD and so on) and ~/.pgpass are read as libpq does.
//
// # When the lock is lost
//
// When its session, or a timed lease, is not renewed in time; when an operator breaks it.
// The holder hears of a break at once.
//
// # Do not use when
//
// The database is near its limits: every grant and every release is a commit, and
// notifications of all databases of a server are committed one after the other. When the
// work that the lock protects is in this same database: a row lock or a unique key in the
// same transaction is exact, and needs no lease.
package pglock
