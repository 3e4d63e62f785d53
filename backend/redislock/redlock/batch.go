package redlock

import (
	"strconv"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// terms are what many acquires, or many releases, have in common: everything that is sent for
// them except the lock and the lease. See quick.lua.
type terms struct {
	abandon string // of a release
	// Of an acquire.
	ttl, mode, permits, limit, owner, note string
}

// request is one operation as it is sent to a node.
type request struct {
	verb string
	// lock is the one lock that the operation is about; empty for several.
	lock  string
	terms terms    // of acquire and release, which are sent together with others of the same terms
	args  []string // what is sent for it alone
}

// one returns an operation about one lock.
func one(verb, lock string, a ...string) request {
	return request{verb: verb, lock: lock, args: append([]string{lock}, a...)}
}

// many returns an operation about several locks, or none.
func many(verb string, a ...string) request { return request{verb: verb, args: a} }

// joins reports whether the operation can be sent together with others of its kind.
func (r *request) joins() bool { return r.verb == opAcquire || r.verb == opRelease }

// owed reports whether a node that is down gets the operation when it is up.
func (r *request) owed() bool { return r.verb == opRelease || r.verb == opBack }

// common returns the arguments that are sent once for all operations of a kind.
func (r *request) common() []string {
	t := &r.terms
	switch r.verb {
	case opAcquire:
		return []string{t.ttl, t.mode, t.permits, t.limit, t.owner, t.note}
	case opRelease:
		return []string{t.abandon}
	}
	return nil
}

// batch is operations as they are sent: acquire and release carry many leases. A lease adds
// only what is sent for it alone.
type batch struct {
	ops    []*op
	groups [][]int // of indices of ops
}

// batchOf sorts the operations into groups, in an order that for each lock is that of the
// queue: an operation joins a group only when no later group is about its lock. So a release
// never comes before what it releases.
func batchOf(ops []*op) *batch {
	type kind struct {
		verb  string
		terms terms
	}
	b := &batch{ops: ops}
	newest := make(map[kind]int, 1)        // the last group of the kind
	last := make(map[string]int, len(ops)) // by lock: the last group about it
	first := 0                             // no group before it is joined
	for i, o := range ops {
		k := kind{o.verb, o.terms}
		into, found := newest[k]
		if !found || !o.joins() || into < max(first, last[o.lock]) {
			into = len(b.groups)
			newest[k] = into
			b.groups = append(b.groups, nil)
		}
		b.groups[into] = append(b.groups[into], i)
		if last[o.lock] = into; o.lock == "" {
			first = into + 1
		}
	}
	return b
}

// write appends the arguments.
func (b *batch) write(to []string) []string {
	for _, g := range b.groups {
		o := b.ops[g[0]]
		common := o.common()
		to = append(to, o.verb, strconv.Itoa(len(common)+len(g)*len(o.args)))
		to = append(to, common...)
		for _, i := range g {
			to = append(to, b.ops[i].args...)
		}
	}
	return to
}

// shortWay begins the answer that many acquires or releases have in common: all went the short way.
const shortWay = "ALL"

// tell delivers the answers to the operations.
func (b *batch) tell(answers []program.Reply) {
	for k, g := range b.groups {
		list, err := answerOf(answers, k)
		for n, i := range g {
			switch o := b.ops[i]; {
			case err != nil, !o.joins():
				o.tell(list, err)
			case list[0].S == "EACH":
				o.tell(answerOf(list[1:], n))
			case list[0].S == shortWay:
				o.tell(list, nil)
			default:
				o.tell(nil, program.ErrReply)
			}
		}
	}
}

// answerOf returns answer i: a list that begins with a word or a number.
func answerOf(answers []program.Reply, i int) ([]program.Reply, error) {
	if i >= len(answers) || len(answers[i].List) == 0 {
		return nil, program.ErrReply
	}
	list := answers[i].List
	if list[0].S == "ERR" {
		d := decode(list[1:])
		return nil, program.NewServerError(d.Text())
	}
	return list, nil
}
