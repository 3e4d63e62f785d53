package history

// Version of the format that this package writes.
const Version = 1

// Kind says what an event tells.
type Kind string

// The kinds of event.
const (
	KindHeader Kind = "header" // how the history came about
	KindFooter Kind = "footer" // the recording came to its end in order
	KindCall   Kind = "call"   // a worker calls
	KindReturn Kind = "return" // and has its answer
	KindHeld   Kind = "held"   // a worker asked whether it still holds the lock, at t: yes, until Deadline
	KindLost   Kind = "lost"   // a worker was told that it lost the lock
	KindRead   Kind = "read"   // a read reached the resource
	KindWrite  Kind = "write"  // a write reached the resource
	KindStart  Kind = "start"  // a worker begins
	KindEnd    Kind = "end"    // a worker came to its end in order
	KindKill   Kind = "kill"   // a worker is about to be killed
	KindFreeze Kind = "freeze" // a worker is about to be stopped
	KindThaw   Kind = "thaw"   // a worker is about to run again
	KindStall  Kind = "stall"  // a worker did not run for Took until t, for want of a processor
	KindTick   Kind = "tick"   // a worker has reported what it saw until t
	KindFault  Kind = "fault"  // a fault of the network begins
	KindHeal   Kind = "heal"   // and ends
	KindQuiet  Kind = "quiet"  // all faults are over
	KindLeft   Kind = "left"   // after all workers ended, the backend still has this
	KindNote   Kind = "note"   // for people
)

// Verb is what a worker calls.
type Verb string

// The verbs.
const (
	VerbAcquire      Verb = "acquire"       // waits in line
	VerbTry          Verb = "try"           // does not wait
	VerbRenew        Verb = "renew"         // by hand; the client's own renewals show in the deadlines
	VerbRelease      Verb = "release"       // gives the lease back
	VerbReenter      Verb = "reenter"       // takes again what it holds
	VerbLeave        Verb = "leave"         // gives back what it took again
	VerbStaleRenew   Verb = "stale-renew"   // past the client, for a lease that the worker lost
	VerbStaleRelease Verb = "stale-release" // the same
)

// Outcome is how a call or a write ended.
type Outcome string

// The outcomes. Of what is Unknown, the effect may come at any time after the call.
const (
	OK      Outcome = "ok"
	Held    Outcome = "held"    // others have the lock; for a wait it counts as unknown
	Lost    Outcome = "lost"    // the lease is over
	Unknown Outcome = "unknown" // canceled, timed out, away
	Refused Outcome = "refused" // the resource refused the token; the call was refused before it was sent
)

// The registers of the resource.
const (
	Bare    = "bare"    // takes every write
	Guarded = "guarded" // takes no token lower than the highest it has seen, of reads too
)

// Infinity is the time of what never came.
const Infinity = int64(1<<63 - 1)

// Event is one line of a history. Which fields it has depends on its kind.
type Event struct {
	Kind Kind  `json:"e"`
	At   int64 `json:"t"`
	// Worker is a process: "2.1" is the first life of the second worker.
	Worker string `json:"w,omitempty"`
	// In is the process of a worker that is not one by itself, at its start: what is done to
	// the process is done to the worker.
	In string `json:"in,omitempty"`
	// Op pairs a call with its return, within a worker.
	Op   int64  `json:"op,omitempty"`
	Verb Verb   `json:"verb,omitempty"`
	Lock string `json:"lock,omitempty"`
	// Acq names an acquisition: the acquire has it, and all that is done with the lease.
	Acq string `json:"acq,omitempty"`
	// Shared, Limit and Permits are what the acquisition asks for. A limit of 0 is none.
	Shared  bool `json:"shared,omitempty"`
	Limit   int  `json:"limit,omitempty"`
	Permits int  `json:"permits,omitempty"`
	// TTL, in nanoseconds, of a lease with an end of its own that nobody renews; else 0.
	TTL     int64   `json:"ttl,omitempty"`
	Outcome Outcome `json:"outcome,omitempty"`
	Token   uint64  `json:"token,omitempty"`
	// Deadline is until when the worker may believe that it holds the lock.
	Deadline int64 `json:"deadline,omitempty"`
	// Cause of a loss, name of a fault, or text of a note.
	Text string `json:"text,omitempty"`
	// Told is true for a loss that the backend told; the others are the client's own.
	Told bool `json:"told,omitempty"`
	// Register, Base and Value of a write: it replaces Base, which the worker read, by Value.
	// A read gives Value; a register that is new has the empty one.
	Register string `json:"register,omitempty"`
	Base     string `json:"base,omitempty"`
	Value    string `json:"value,omitempty"`
	// Took is how long a stall was, in nanoseconds.
	Took int64 `json:"took,omitempty"`
	// Before and After are the goroutines of a worker at its start and its end.
	Before int `json:"before,omitempty"`
	After  int `json:"after,omitempty"`

	*Header `json:",omitempty"`
}

// Header says how a history came about. It holds no secret: not the backend's address.
type Header struct {
	Version int    `json:"version,omitempty"`
	Seed    uint64 `json:"seed,omitempty"`
	Profile string `json:"profile,omitempty"`
	Backend string `json:"backend,omitempty"`
	// Prefix of the names of all locks, which is left out where people read.
	Prefix  string `json:"prefix,omitempty"`
	Workers int    `json:"workers,omitempty"`
	// SessionTTL of the clients, in nanoseconds.
	SessionTTL int64 `json:"session_ttl,omitempty"`
	// ExpiryLag is how much later than its time a lease may be free, in nanoseconds.
	ExpiryLag int64 `json:"expiry_lag,omitempty"`
	// FIFO is true when the backend claims to serve in order.
	FIFO bool `json:"fifo,omitempty"`
	// Tied is true when the leases of a worker end with its connection, at the latest when it
	// is killed.
	Tied bool `json:"tied,omitempty"`
	// Started is the wall time of the header, for people.
	Started string `json:"started,omitempty"`
	// Replay is the command that plays the same again.
	Replay string `json:"replay,omitempty"`
	// NotTested is what the run could not or was not allowed to do.
	NotTested []string `json:"not_tested,omitempty"`
	// Warnings are what was found wrong with the backend before the run.
	Warnings []string `json:"warnings,omitempty"`
}
