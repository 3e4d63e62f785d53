// Package verify is the referee of holdfast verify. It reads a history of calls to a lock
// service (package history) and decides whether the service kept its promises. It does not know
// how the calls were made, and shares no code with the workers that made them.
//
// # The checks
//
//   - overlap: no two workers believed at the same time that they held conflicting locks. A belief
//     begins when an acquire returned. It ends when the release is called, the loss is reported, the
//     local deadline passes, or the worker is stopped or killed. A stopped worker believes again only
//     when it checked the lock after it ran again.
//   - tokens: no two grants of a lock have the same token. A grant that was requested after another had
//     returned has the greater token.
//   - register: a resource that refuses smaller tokens loses no update. Beside it there is a resource
//     that accepts every write, to show what the token is for.
//   - model: there is an order of all calls, each between its call and its return, in which a lock with
//     leases would have answered the same. Leases may end at any time after their deadline and never
//     before it.
//   - liveness: a waiter for a free lock gets it within the TTL, the lag of the backend and two seconds,
//     unless a fault intervenes: one of the worker's own, or one of another worker that may have been
//     granted the lock without knowing. If the backend keeps the queue, such a worker must have called
//     earlier than the waiter, or less than a second later.
//   - loss: a holder whose deadline passed is told within 50 ms, not counting time in which its process
//     did not run. If some worker was short of a processor about then, the bound is 500 ms plus twice the
//     time for which it was; that time is also added to the bound of liveness.
//   - rest: nothing is left behind: no lease, no waiter, no goroutine.
//
// # In memory
//
// [Judge] judges a history that is in memory. A [Referee] judges one that is being recorded,
// and keeps a window of it: each lock is checked by itself, when it has not been used for a
// while. The workers use many locks, and change their names, so that this happens soon.
//
// # Verdicts
//
// A check is passed, violated or inconclusive. Violated is final: a service that keeps its
// promises can never produce such a history. Inconclusive means that the question is open: the
// search reached its time limit, the recording was cut short, or too little happened.
package verify
