// Package bench measures locks: how many pairs of acquire and release per second, how long each
// takes, how evenly the waiters are served, how much load it puts on the server, and whether two
// clients ever held the lock at the same time.
//
// A [Contender] is one implementation on one [Engine]: ours, the bare commands of the engine, or a
// peer. A [Scenario] is one workload. [Run] runs the scenarios one by one, and within each the
// contenders in turn, round after round, so that other load on the machine affects all of them. The
// reported figure is the median of the rounds; a ratio is the median of the ratios of each round.
//
// # What the figures are
//
// All clocks are of this process, and monotonic. A wait is the duration of the call that acquires
// the lock. A hand-over is the time from the call that releases a contended lock to the return of
// the next holder's call. Goroutines that still wait at the end of the run count with the time that
// they have waited by then. For the waits at a contended lock every goroutine has the same weight,
// however often it was served: starving a waiter does not improve a percentile. Requests are
// counted on the server, in a separate pass that is not timed.
//
// # The referee
//
// Every grant is checked against all others of its lock: an overlap is a double hold, and a token
// that is not greater than the one before is a token fault. A single one of either fails the whole
// run.
package bench
