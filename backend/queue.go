package backend

// Claim is what a lease, or a request for one, occupies of its lock.
type Claim struct {
	Mode    Mode
	Limit   int // 0: none
	Permits int // at least 1
}

// taken is what the holders of a lock occupy together.
type taken struct {
	leases, permits int
	exclusive       bool
}

func takenBy(out []Claim) taken {
	var t taken
	for _, c := range out {
		t.add(c)
	}
	return t
}

func (t *taken) add(c Claim) {
	t.leases++
	t.permits += c.Permits
	t.exclusive = t.exclusive || c.Mode == Exclusive
}

// admits reports whether c fits beside it: the rule of C1.
func (t *taken) admits(c Claim) bool {
	return t.leases == 0 || !t.exclusive && c.Mode != Exclusive && (c.Limit == 0 || t.permits+c.Permits <= c.Limit)
}

// Fits reports whether c may be held together with the leases in out, which are held: the rule of
// C1.
func (c Claim) Fits(out []Claim) bool {
	t := takenBy(out)
	return t.admits(c)
}

// Admit returns how many waiters of queue, from its head, may be granted beside the leases
// in out: the rule of C3. It stops at the first that does not fit, so that no waiter is overtaken.
func Admit(out, queue []Claim) int {
	t := takenBy(out)
	for i, c := range queue {
		if !t.admits(c) {
			return i
		}
		t.add(c)
	}
	return len(queue)
}

// LimitInForce returns the limit of the shared claims among those given, and whether there are any.
// Exclusive claims have no limit.
func LimitInForce(claims ...[]Claim) (int, bool) {
	for _, cs := range claims {
		for _, c := range cs {
			if c.Mode == Shared {
				return c.Limit, true
			}
		}
	}
	return 0, false
}

// InfoLimit returns the [LockInfo].Limit of a lock with these claims: 1 when an exclusive lease is held, otherwise the
// limit in force, and 0 when there is none.
func InfoLimit(held, waiting []Claim) int {
	for _, c := range held {
		if c.Mode == Exclusive {
			return 1
		}
	}
	limit, _ := LimitInForce(held, waiting)
	return limit
}

// CheckLimit returns a *LimitError if c, which is requested of the named lock, is shared and the claims, of the leases
// that are held or in the queue, have another limit in force.
func (c Claim) CheckLimit(lock string, claims ...[]Claim) error {
	if c.Mode != Shared {
		return nil
	}
	if limit, ok := LimitInForce(claims...); ok && limit != c.Limit {
		return &LimitError{Name: lock, Asked: c.Limit, InForce: limit}
	}
	return nil
}
