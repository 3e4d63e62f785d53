package backend

// Front is a queue of leases in a store that does not record which leases are held. As no waiter is
// overtaken, the held leases are always the front of the queue, as far as it fits.
type Front struct {
	// Claims of all holders and waiters, in order.
	Claims []Claim
	// Out is how many of them are held.
	Out int
}

// FrontOf returns the Front of a queue, with the number of claims that are held.
func FrontOf(queue []Claim) Front { return Front{Claims: queue, Out: Admit(nil, queue)} }

// Admits reports whether a claim at the end of the queue would be held immediately.
func (f Front) Admits(c Claim) bool { return f.Out == len(f.Claims) && c.Fits(f.Claims) }

// Blocker returns the index of the claim whose end the waiter at i should wait for. The second
// result is false when the end of any claim before it may be enough. An exclusive claim needs all
// claims before it to be gone, and a reader all exclusive ones. The nearest of them is usually the
// last to go; when it is gone, the waiter reads the queue again. With permits, the release of any
// lease may be enough.
func (f Front) Blocker(i int) (int, bool) {
	switch c := f.Claims[i]; {
	case c.Mode == Exclusive:
		return i - 1, i > 0
	case c.Limit > 0:
		return 0, false
	}
	for j := i - 1; j >= 0; j-- {
		if f.Claims[j].Mode == Exclusive {
			return j, true
		}
	}
	return 0, false
}

// Decisive returns the start of the range of decisive predecessors of waiter i. While all of them
// are there, refusing the waiter is correct; when any of them is gone, it may be granted. The range
// ends before i and has at most the given number of claims. An exclusive claim is held only when
// all before it are gone, so its nearest predecessor suffices.
func (f Front) Decisive(i, most int) int {
	if f.Claims[i].Mode == Exclusive {
		return i - 1
	}
	return max(0, i-most)
}
