// Package sqllease is what backends that keep leases in the tables of a database have in
// common: the rules, group commit, those who wait, and what is put in order now and then.
// What differs from one database to another is behind [Store].
//
// One transaction. Who changes the leases of a lock has its row locked. Then it reads the
// leases in a statement of its own, which sees what was committed while the row was waited
// for. The rules are applied here, and the changes are sent with the commit.
//
// Group commit. Requests that come while transactions are under way share the next one, and
// a transaction takes along who is about to ask. Rows are locked in the order of their names:
// transactions do not wait in a circle.
//
// Long lines. Of a line only the front is read, and the rest is counted. Where more has to be
// known the transaction is done anew with all of it.
//
// Over. A lease under a session is out for as long as the row of the session says so. What
// seems to be over is locked and looked at again before anybody concludes that: it may have
// been renewed.
//
// Hand-over. The transaction that frees a lock grants it to those that are next in line.
// Where the database can, it tells the value that waits, with the commit. Where it cannot,
// that value looks: rarely while all that it waits for is held under sessions of its own.
package sqllease
