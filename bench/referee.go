package bench

import "sync/atomic"

// Referee watches the grants of one lock. All methods may be called at once.
type Referee struct {
	inside  atomic.Int64 // exclusive holders in the upper half, shared ones in the lower
	last    atomic.Uint64
	doubles atomic.Int64
	faults  atomic.Int64
}

const oneExclusive = int64(1) << 32

// EnterExclusive notes that somebody has the lock alone. Token is 0 where there is none.
func (r *Referee) EnterExclusive(token uint64) {
	if r.inside.Add(oneExclusive) != oneExclusive {
		r.doubles.Add(1)
	}
	if token != 0 && token <= r.last.Swap(token) {
		r.faults.Add(1)
	}
}

// LeaveExclusive notes that the holder is about to give it back.
func (r *Referee) LeaveExclusive() { r.inside.Add(-oneExclusive) }

// EnterShared notes that somebody has the lock with others: with any number of them, or
// with a limit above 0 with limit - 1.
func (r *Referee) EnterShared(limit int) {
	n := r.inside.Add(1)
	if n >= oneExclusive || limit > 0 && n > int64(limit) {
		r.doubles.Add(1)
	}
}

// LeaveShared notes that a shared holder is about to give it back.
func (r *Referee) LeaveShared() { r.inside.Add(-1) }

// Doubles is how often somebody entered who must not have been let in.
func (r *Referee) Doubles() int64 { return r.doubles.Load() }

// TokenFaults is how often a token was not greater than the one before.
func (r *Referee) TokenFaults() int64 { return r.faults.Load() }
