package redlock

import "github.com/holdfast-io/holdfast/backend/redislock/internal/program"

// trace is what an acquisition may have left on a node: a vote, or a request that may still
// get one. It stays until the node has acknowledged its return.
type trace struct {
	attempt int64 // 0: there is nothing
	mixed   bool  // another attempt may have the vote, which no acknowledgement is about
}

// leaves records what the round may have left on the nodes, and whether that is a quorum,
// together with what is left of the rounds before.
func (a *acquisition) leaves(bal *ballot) {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	n := 0
	for i := range a.b.nodes {
		t, v, ghost := &a.traces[i], bal.got[i], bal.ghosts&(1<<i) != 0
		if err := bal.p.errs[i]; v != nil || ghost || bal.p.pending[i] || err != nil && !unsent(err) {
			t.mixed = t.mixed || t.attempt != 0 && t.attempt != a.attempt || v != nil && v.old || ghost
			t.attempt = a.attempt
		}
		n += toInt(t.attempt != 0)
	}
	a.mayHold = n >= a.quorum
}

// traced reports whether the attempt may have left something on the node.
func (a *acquisition) traced(node int) bool {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	return a.traces[node].attempt == a.attempt
}

// acknowledged records that a node has taken back the vote that the attempt got or may still get.
func (a *acquisition) acknowledged(node int, attempt int64) {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	if t := &a.traces[node]; t.attempt == attempt && !t.mixed {
		*t = trace{}
	}
}

// giveBack releases the votes of the attempt, also those that are still to come, and those
// that it kept from an earlier round on nodes that do not answer now. told: the lease may have
// been seen as the holder, so that waiters must be notified.
func (a *acquisition) giveBack(bal *ballot, told bool) {
	attempt := a.attempt
	for i, n := range a.b.nodes {
		late := bal.got[i] == nil
		if late && !a.traced(i) {
			continue
		}
		n.submit(&op{
			request: one("back", a.req.Name, string(a.req.Lease), itoa(attempt), flag(late), flag(told)).owed(),
			reply: func(list []program.Reply, err error) {
				d := decode(list)
				if err == nil && (d.Number() == 1 || late) {
					a.acknowledged(i, attempt)
				}
			},
		})
	}
	a.forget()
}
