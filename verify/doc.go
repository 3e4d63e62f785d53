// Package verify is the referee of holdfast verify: it reads a history of calls to a
// lock service (package history) and says whether the service kept its promises. It
// knows nothing of how the calls were made and shares no code with those who made them.
//
// # The checks
//
//   - overlap: no two workers believed at once that they hold a lock that they cannot
//     both hold. A belief begins when an acquire returned and ends when the release is
//     called, the loss is told, the local deadline passes, or the worker is stopped or
//     killed. A stopped worker believes again only when it looked after it ran again.
//   - tokens: no two grants of a lock have the same token, and a grant that was asked for
//     after another had returned has the greater one.
//   - register: a resource that refuses smaller tokens loses no update. Beside it stands
//     one that takes everything, to show what the token is for.
//   - model: there is an order of all calls, each between its call and its return, in
//     which a lock with leases would have answered the same. Leases may end at any time
//     after their deadline and never before it.
//   - liveness: whoever waits for a lock that is free gets it within the TTL, the lag of
//     the backend and two seconds, unless a fault stands in between: one of the worker's own,
//     or one of another that may have been granted the lock unseen. Where the backend keeps
//     the line that is somebody who came before, or less than a second later.
//   - loss: a holder whose deadline passed is told within 50 ms, not counting time in
//     which its process did not run; within 500 ms and twice the time for
//     which some worker was short of a processor about then; that time is added to the bound
//     of liveness, too.
//   - rest: nothing is left behind: no lease, no waiter, no goroutine.
//
// # In memory
//
// [Judge] judges a history that is in memory. A [Referee] judges one that is being recorded,
// and keeps a window of it: each lock is checked by itself, when nobody has used it for a
// while. The players use many locks, and change their names, so that this is soon.
//
// # Verdicts
//
// A check is passed, violated or inconclusive. Violated is final: there is no way in which
// a service that keeps its promises leads to such a history. Inconclusive says that the
// question is open: the search was ended by its time limit, the recording was cut short,
// or too little happened.
package verify
