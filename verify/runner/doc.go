// Package runner makes histories for the referee, package verify. Its workers acquire, share,
// renew, lose and release locks of a backend while it injects faults.
//
// Workers are separate processes, so that one can really be killed and stopped. Between each
// worker and the backend is a relay (internal/chaos), so that the network can fail for one
// worker and not for another, and so that the backend itself is never touched. A backend that
// lives in one process (memory://) has its workers in that process: they cannot be
// stopped, and their network is a wrapper around the backend.
//
// # Density
//
// A fault of one grant in thousands needs thousands of grants to be found. Beside a few tasks
// that do everything that a client can do, each worker has a background load: tasks that hold one of a
// few contended locks for a moment, tasks that hold one of many for about its TTL, and clients
// that die with the locks that they hold. A worker whose machine or backend is slow requests
// fewer locks.
//
// A fault excuses a worker that waits without success, and those that wait behind it. So that a
// lost lock shows, some workers never have a fault and use some locks alone. One more, the
// dead-lock probe, requests each lock that a client held when it died.
//
// A backend that takes long to answer is no finding either, with a fault or without: a machine
// can be too busy. Workers report such a silence, and the referee takes it for a fault: of the
// worker, if that had one, and of the backend otherwise.
//
// The order of events follows from the seed: the plan of the faults exactly, and what each
// worker chooses. The machine's timing is not part of the seed, so the same seed causes the
// same sort of trouble, not the same history.
//
// # What it takes from a backend
//
// All locks have names under one random prefix that no other client has. The number of calls
// per second is bounded. At the end everything is released, and the run checks what is left
// under the prefix. No fault touches the backend: at most a worker's relay breaks.
package runner
