package history

// Version of the format that this package writes.
const Version = 1

// Kind is the kind of an event.
type Kind string

// The kinds of event.
const (
	KindHeader Kind = "header" // how the history was made
	KindFooter Kind = "footer" // the recording ended in order
	KindCall   Kind = "call"   // a worker calls
	KindReturn Kind = "return" // and gets its answer
	KindHeld   Kind = "held"   // a worker checked whether it still holds the lock, at t: yes, until Deadline
	KindLost   Kind = "lost"   // a worker was told that it lost the lock
	KindRead   Kind = "read"   // a read reached the resource
	KindWrite  Kind = "write"  // a write reached the resource
	KindStart  Kind = "start"  // a worker starts
	KindEnd    Kind = "end"    // a worker ended in order
	KindKill   Kind = "kill"   // a worker is about to be killed
	KindFreeze Kind = "freeze" // a worker is about to be stopped
	KindThaw   Kind = "thaw"   // a worker is about to run again
	KindStall  Kind = "stall"  // a worker did not run for Took until t, for want of a processor
	// KindSilence: a call of a worker that does not wait for a lock had no answer for Took until t,
	// which is long: there was a fault, or the machine was too busy.
	KindSilence Kind = "silence"
	KindTick    Kind = "tick"  // a worker has reported what it saw until t
	KindFault   Kind = "fault" // a fault of the network begins
	KindHeal    Kind = "heal"  // and ends
	KindQuiet   Kind = "quiet" // all faults have ended
	KindLeft    Kind = "left"  // after all workers ended, this is left on the backend
	KindNote    Kind = "note"  // for people
)

// Verb is the operation that a worker calls.
type Verb string

// The verbs.
const (
	VerbAcquire      Verb = "acquire"       // waits in the queue
	VerbTry          Verb = "try"           // does not wait
	VerbRenew        Verb = "renew"         // by hand; the client's own renewals show in the deadlines
	VerbRelease      Verb = "release"       // releases the lease
	VerbReenter      Verb = "reenter"       // acquires again a lock that it holds
	VerbLeave        Verb = "leave"         // releases what it acquired again
	VerbStaleRenew   Verb = "stale-renew"   // past the client, for a lease that the worker has lost
	VerbStaleRelease Verb = "stale-release" // the same
)

// Outcome is how a call or a write ended.
type Outcome string

// The outcomes. The effect of an Unknown call may come at any time after the call.
const (
	OK      Outcome = "ok"
	Held    Outcome = "held"    // other clients hold the lock; for a wait it counts as unknown
	Lost    Outcome = "lost"    // the lease has ended
	Unknown Outcome = "unknown" // canceled, timed out, or the backend was unavailable
	Refused Outcome = "refused" // the resource refused the token, or the call was refused before it was sent
)

// The registers of the resource.
const (
	Bare    = "bare"    // takes every write
	Guarded = "guarded" // refuses a token below the highest it has seen, for reads too
)

// Infinity is the time of an event that never came.
const Infinity = int64(1<<63 - 1)

// Event is one line of a history. Which fields it has depends on its kind.
type Event struct {
	Kind Kind  `json:"e"`
	At   int64 `json:"t"`
	// Worker is a process: "2.1" is the first life of the second worker.
	Worker string `json:"w,omitempty"`
	// In is the process of a worker that is not a process itself, at its start: a fault of the
	// process is a fault of the worker.
	In string `json:"in,omitempty"`
	// Op pairs a call with its return, within a worker.
	Op   int64  `json:"op,omitempty"`
	Verb Verb   `json:"verb,omitempty"`
	Lock string `json:"lock,omitempty"`
	// Acq identifies an acquisition: the acquire has it, and every call on the lease.
	Acq string `json:"acq,omitempty"`
	// Shared, Limit and Permits are those of the acquisition. A limit of 0 means no limit.
	Shared  bool `json:"shared,omitempty"`
	Limit   int  `json:"limit,omitempty"`
	Permits int  `json:"permits,omitempty"`
	// TTL, in nanoseconds, of a timed lease that nothing renews; else 0.
	TTL     int64   `json:"ttl,omitempty"`
	Outcome Outcome `json:"outcome,omitempty"`
	Token   uint64  `json:"token,omitempty"`
	// Deadline is the time until which the worker may believe that it holds the lock.
	Deadline int64 `json:"deadline,omitempty"`
	// Text is the cause of a loss, the name of a fault, or the text of a note.
	Text string `json:"text,omitempty"`
	// Told is true for a loss that the backend reported; the client found the others itself.
	Told bool `json:"told,omitempty"`
	// Register, Base and Value of a write: it replaces Base, which the worker read, by Value. A
	// read has Value; a new register has the empty one.
	Register string `json:"register,omitempty"`
	Base     string `json:"base,omitempty"`
	Value    string `json:"value,omitempty"`
	// Took is how long a stall or a silence was, in nanoseconds.
	Took int64 `json:"took,omitempty"`
	// Before and After are the goroutines of a worker at its start and its end.
	Before int `json:"before,omitempty"`
	After  int `json:"after,omitempty"`

	*Header `json:",omitempty"`
}

// Header describes how a history was made. It contains no secret and not the backend's address.
type Header struct {
	Version int    `json:"version,omitempty"`
	Seed    uint64 `json:"seed,omitempty"`
	Profile string `json:"profile,omitempty"`
	Backend string `json:"backend,omitempty"`
	// Prefix of the names of all locks. It is omitted in text for people.
	Prefix  string `json:"prefix,omitempty"`
	Workers int    `json:"workers,omitempty"`
	// SessionTTL of the clients, in nanoseconds.
	SessionTTL int64 `json:"session_ttl,omitempty"`
	// ExpiryLag is how much later than its end a lease may become free, in nanoseconds.
	ExpiryLag int64 `json:"expiry_lag,omitempty"`
	// FIFO is true when the backend claims to grant in order.
	FIFO bool `json:"fifo,omitempty"`
	// Tied is true when the leases of a worker end with its connection, at the latest when it
	// is killed.
	Tied bool `json:"tied,omitempty"`
	// Started is the wall time of the header, for people.
	Started string `json:"started,omitempty"`
	// Replay is the command that replays the run.
	Replay string `json:"replay,omitempty"`
	// NotTested is what the run could not test, or was not allowed to.
	NotTested []string `json:"not_tested,omitempty"`
	// Warnings are the problems that were found in the backend before the run.
	Warnings []string `json:"warnings,omitempty"`
}
