package runner

import (
	"time"

	"github.com/holdfast-io/holdfast/verify/history"
)

// job tells a worker what to do. It is the first line that a worker reads.
type job struct {
	Worker string // "2.1"
	URL    string
	Prefix string
	Seed   uint64
	TTL    time.Duration
	Tasks  int           // how many locks it holds at the same time
	Pause  time.Duration // between two acquires of a task, on average
	// Patience is how long an acquire waits, unless it is to give up early.
	Patience time.Duration
	// Jepsen: the worker runs only that workload, see the profile.
	Jepsen bool
	Gens   []int // of the names of each slot, at the start
	Load   load
}

// order is a line that a worker reads after its job.
type order struct {
	// Gens are the generations of the names from here on.
	Gens []int `json:"gens,omitempty"`
	// Keep: locks that are held, or acquired from now on, are kept for this time, if possible.
	// The next fault then hits a holder.
	Keep time.Duration `json:"keep,omitempty"`
	// Op is the number of a read or write. It is set in the answer of the resource to that
	// call.
	Op      int64           `json:"op,omitempty"`
	Outcome history.Outcome `json:"outcome,omitempty"`
	Value   string          `json:"value,omitempty"`
	// Stop ends the worker in order.
	Stop bool `json:"stop,omitempty"`
}

// slot is a kind of lock that the workers compete for.
type slot struct {
	name   string
	shared bool // there are readers and writers
	limit  int  // a semaphore
}

// slots returns the slots, which are the same for all workers. The first two differ in case
// only.
func slots() []slot {
	return []slot{{name: "mutex"}, {name: "Mutex"}, {name: "rw", shared: true}, {name: "permits", shared: true, limit: 3}}
}
