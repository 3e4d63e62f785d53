package play

import (
	"time"

	"github.com/holdfast-io/holdfast/verify/history"
)

// job is what a worker has to do. It is the first line that a worker reads.
type job struct {
	Worker string // "2.1"
	URL    string
	Prefix string
	Seed   uint64
	TTL    time.Duration
	Tasks  int           // how many locks it takes at once
	Pause  time.Duration // between two acquires of a task, in the middle
	// Patience is how long an acquire waits that is not cut short on purpose.
	Patience time.Duration
	// Jepsen plays only that: see the profile.
	Jepsen bool
	Gens   []int // of the names of each slot, at the start
	Crowd  crowd
}

// order is a line that a worker reads after its job.
type order struct {
	// Gens are the generations of the names from here on.
	Gens []int `json:"gens,omitempty"`
	// Keep: what is had, or taken from now on, is kept for so long, as far as it goes. Then a
	// fault comes to somebody who holds something.
	Keep time.Duration `json:"keep,omitempty"`
	// Op is set in the answer of the resource to the read or write of that number.
	Op      int64           `json:"op,omitempty"`
	Outcome history.Outcome `json:"outcome,omitempty"`
	Value   string          `json:"value,omitempty"`
	// Stop ends the worker in order.
	Stop bool `json:"stop,omitempty"`
}

// slot is a kind of lock that the workers fight for.
type slot struct {
	name   string
	shared bool // readers and writers
	limit  int  // a semaphore
}

// slots are the same for all workers. The first two differ in case only.
func slots() []slot {
	return []slot{{name: "mutex"}, {name: "Mutex"}, {name: "rw", shared: true}, {name: "permits", shared: true, limit: 3}}
}
