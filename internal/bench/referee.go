package bench

import "sync/atomic"

// Referee checks the grants of one lock. All methods are safe for concurrent use.
type Referee struct {
	inside  atomic.Int64
	last    atomic.Uint64
	doubles atomic.Int64
	faults  atomic.Int64
}

// Enter records a grant. token is 0 if there is none.
func (r *Referee) Enter(token uint64) {
	if r.inside.Add(1) > 1 {
		r.doubles.Add(1)
	}
	if token != 0 && token <= r.last.Swap(token) {
		r.faults.Add(1)
	}
}

// Leave records that the holder is about to release the lock.
func (r *Referee) Leave() { r.inside.Add(-1) }

// Doubles returns how often a lock was granted that another caller held.
func (r *Referee) Doubles() int64 { return r.doubles.Load() }

// TokenFaults returns how often a token was not greater than the one before.
func (r *Referee) TokenFaults() int64 { return r.faults.Load() }
