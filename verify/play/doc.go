// Package play makes histories for the referee, package verify: it lets workers take,
// share, renew, lose and give back locks of a backend while it hurts them.
//
// Workers are processes of their own, so that one can be killed and stopped for real.
// Between each worker and the backend stands a relay (internal/chaos), so that the
// network can be hurt for one worker and not for another, and so that the backend itself
// is never touched. A backend that lives in one process (memory://, embedded://) has its
// workers in that process: they cannot be stopped, and their network is a wrapper around
// the backend.
//
// # Density
//
// A fault of one grant in thousands is found where there are thousands of grants. Beside a few
// tasks that do everything that a client can do, each worker has a crowd: tasks that hold one
// of a few contended locks for a moment, tasks that hold one of many for about its TTL, and
// clients that die with what they hold. A worker whose machine or backend is slow asks for less.
//
// A fault excuses a worker that waits in vain, and those who wait behind it. So that a lock
// which is lost shows, some workers never have a fault and use some locks alone, and one more,
// the heir, asks for each lock that a client had when it died.
//
// What is done when follows from the seed: the plan of the faults exactly, and what each
// worker chooses. The machine's timing is not part of the seed, so the same seed gives the
// same sort of trouble, not the same history.
//
// # What it takes from a backend
//
// All locks have names under one random prefix that nobody else has. The number of calls
// per second is bounded. At the end everything is given back, and what is left under the
// prefix is looked for. No fault touches the backend: a worker's relay is the most that
// breaks.
//
// # Servers of the run
//
// [Config.Cluster] starts servers, which the run may hurt: they stop and crash. Where the
// machine can do it (package internal/shim), their disks are slow at times and lose in a
// crash what was not synced, and their wall clocks jump. A clock that measures leases is only
// stepped back, by a second in all: no backend promises that locks stay exclusive when it is
// put ahead. A fault of the servers is an excuse for every worker.
package play
