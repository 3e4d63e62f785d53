package bench

import "sync/atomic"

// Referee checks the grants of one lock. All methods are safe for concurrent use.
type Referee struct {
	inside  atomic.Int64 // exclusive holders in the upper half, shared ones in the lower
	last    atomic.Uint64
	doubles atomic.Int64
	faults  atomic.Int64
}

const oneExclusive = int64(1) << 32

// EnterExclusive records an exclusive grant. token is 0 if there is none.
func (r *Referee) EnterExclusive(token uint64) {
	if r.inside.Add(oneExclusive) != oneExclusive {
		r.doubles.Add(1)
	}
	if token != 0 && token <= r.last.Swap(token) {
		r.faults.Add(1)
	}
}

// LeaveExclusive records that the exclusive holder is about to release the lock.
func (r *Referee) LeaveExclusive() { r.inside.Add(-oneExclusive) }

// EnterShared records a shared grant. It allows any number of shared holders, or, with a limit
// above 0, at most limit.
func (r *Referee) EnterShared(limit int) {
	n := r.inside.Add(1)
	if n >= oneExclusive || limit > 0 && n > int64(limit) {
		r.doubles.Add(1)
	}
}

// LeaveShared records that a shared holder is about to release the lock.
func (r *Referee) LeaveShared() { r.inside.Add(-1) }

// Doubles returns how often a grant conflicted with another holder.
func (r *Referee) Doubles() int64 { return r.doubles.Load() }

// TokenFaults returns how often a token was not greater than the one before.
func (r *Referee) TokenFaults() int64 { return r.faults.Load() }
