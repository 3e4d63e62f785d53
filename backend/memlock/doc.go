// Package memlock keeps leases in the memory of the process. It is for tests and development,
// and it is the reference: of all backends it is the one that reads like the specification.
//
// # Guarantees
//
// All of C1 to C14, as defined by package backend. Every capability is declared except
// Durable. A lease that is not renewed is free when its TTL has expired, as late as the
// process is scheduled: ExpiryLag declares one second. A loss is pushed when the lock is
// broken and also when a lease or a session expires.
//
// Released leases are not remembered. Abandoned leases, and sessions that have ended, are
// remembered for ten minutes, which is longer than a late request of the same process can
// take to arrive. Tokens need no memory: they come from one counter for all locks of the
// store.
//
// # How it works
//
// A [Store] is the server: one mutex, a map of the locks that are held or waited for, a map
// of the sessions, and a heap of what can expire. A [Backend] is a connection to it;
// [Store.Open] creates as many as there are processes to simulate.
//
// Every call enters the store through Store.enter. This first ends what has expired by then,
// and grants the locks that this freed to their waiters, so that no call sees, or is
// overtaken by, something that has expired. When there are no calls, one timer enters the
// store at the next expiry. The store has no goroutine of its own, and the timer is stopped
// while no Backend is open.
//
// All time is that of package time, so that a whole store can run in a bubble of
// testing/synctest.
//
// # Requires
//
// Nothing.
//
// # URL
//
//	memory://
//
// Each opening of the URL creates a new, empty store.
//
// # When the lock is lost
//
// A lock is lost when its session, or its timed lease, is not renewed in time; when an
// operator breaks it; and when the process ends.
//
// # Do not use when
//
// more than one process needs the lock, or the lock must survive a restart.
package memlock
