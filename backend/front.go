package backend

// Front is a line of leases in a store in which nobody writes down who is out. As nobody
// is overtaken, those that are out are always the front of the line: as far as it fits.
// It is for backends without re-entry, which overtakes.
type Front struct {
	// Claims of all who are out or wait, in order.
	Claims []Claim
	// Out is how many of them are out.
	Out int
}

// FrontOf says who of a line is out.
func FrontOf(line []Claim) Front { return Front{Claims: line, Out: Admit(nil, line)} }

// Admits reports whether a claim that comes last would be out at once.
func (f Front) Admits(c Claim) bool { return f.Out == len(f.Claims) && c.Fits(f.Claims) }

// Blocker is the one whose end the waiter at i waits for. The second result is false when
// any of those before it may do. One that is exclusive needs all before it to be gone, and
// a reader those that are exclusive: the nearest of them is the last to go, as a rule; when
// it is gone, the line is looked at again. With permits, a lease that is given back
// anywhere may be enough.
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

// Decisive is where those begin, before the one at i and up to it, without any of whom it may be
// out: it is refused in truth while they all are there. They are most at the most. One that is
// exclusive is out when all before it are gone, so that the nearest will do.
func (f Front) Decisive(i, most int) int {
	if f.Claims[i].Mode == Exclusive {
		return i - 1
	}
	return max(0, i-most)
}
