// Package bench measures locks: how many pairs of acquire and release a second, how
// long each takes, how evenly the waiters are served, what it costs the server, and
// whether the lock was ever given to two at once.
//
// A [Contender] is one implementation on one [Engine]: ours, the bare commands of the
// engine, or a peer. A [Scenario] is one thing that is done with it. [Run] takes the
// scenarios one by one, and within each the contenders turn about, round after round, so
// that whatever else the machine does meanwhile hits all of them. What is told is the
// median of the rounds; a ratio is the median of the ratios of each round.
//
// # What the figures are
//
// All clocks are of this process, and monotonic. A wait is the time of the call that
// takes the lock. A hand-over is the time from the call that releases a contended lock to
// the return of the next holder's call. Those who are still waiting when the time is over
// count with what they have waited by then, and every goroutine counts the same for the
// waits at a contended lock, however often it was served: starving somebody does not
// improve a percentile. Requests are counted on the server, in a pass of its own that is not timed.
//
// # The referee
//
// Every grant is checked against all others of its lock: an overlap is a double hold, and
// a token that is not greater than the one before is a token fault. One of either makes
// the whole run fail.
//
// # Adding to it
//
// A contender is one small file with a [Locker]; an engine is one with an [Engine]; see
// bench/engines. Peers are in bench/peers, a module of its own, so that nobody who uses
// Holdfast compiles them. The targets are a table in targets.go.
package bench
