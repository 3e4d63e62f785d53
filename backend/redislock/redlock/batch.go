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
	lock string
	// For acquire and release, which are sent together with others of the same terms: what is
	// sent for each one alone.
	terms terms
	own   []string
	args  []string // of all other operations
	// debt is set for a release: a node that is down gets it when it is up.
	debt bool
}

// one returns an operation about one lock.
func one(verb, lock string, a ...string) request {
	return request{verb: verb, lock: lock, args: append([]string{lock}, a...)}
}

// many returns an operation about several locks, or none.
func many(verb string, a ...string) request { return request{verb: verb, args: a} }

func (r request) owed() request {
	r.debt = true
	return r
}

func (r request) joins(other *request) bool {
	return r.own != nil && other.own != nil && r.verb == other.verb && r.terms == other.terms
}

// The number of arguments of an operation that precede those of its leases.
const acquireTerms, releaseTerms = 6, 1

// batch is operations as they are sent: acquire and release carry many leases. A lease adds
// only what is sent for it alone.
type batch struct {
	ops    []*op
	groups [][]int // of indices of ops
}

// manyGroups is the number of groups that an operation is compared with, from the last one
// back.
const manyGroups = 8

// batchOf sorts the operations into groups, in an order that for each lock is that of the
// queue: an operation joins a group only when no later group is about its lock. So a release
// never comes before what it releases.
func batchOf(ops []*op) *batch {
	b := &batch{ops: ops}
	last := make(map[string]int, len(ops)) // by lock: the last group about it
	first := 0                             // no group before it is joined
	for i, o := range ops {
		into := len(b.groups)
		if o.own != nil {
			for k := into - 1; k >= max(first, last[o.lock], len(b.groups)-manyGroups); k-- {
				if ops[b.groups[k][0]].joins(&o.request) {
					into = k
					break
				}
			}
		}
		switch {
		case into < len(b.groups):
			b.groups[into] = append(b.groups[into], i)
		case o.own != nil:
			b.groups = append(b.groups, append(make([]int, 0, len(ops)-i), i))
		default:
			b.groups = append(b.groups, []int{i})
		}
		if last[o.lock] = into; o.lock == "" {
			first = into + 1
		}
	}
	return b
}

// size returns the maximum number of strings that write appends.
func (b *batch) size() int {
	const head = 2
	n := 0
	for _, g := range b.groups {
		o := b.ops[g[0]]
		n += head + acquireTerms + len(o.args) + len(g)*len(o.own)
	}
	return n
}

// write appends the arguments.
func (b *batch) write(to []string) []string {
	for _, g := range b.groups {
		o := b.ops[g[0]]
		t := &o.terms
		to = append(to, o.verb)
		switch {
		case o.own == nil:
			to = append(append(to, strconv.Itoa(len(o.args))), o.args...)
		case o.verb == opAcquire:
			to = append(to, strconv.Itoa(acquireTerms+len(g)*len(o.own)), t.ttl, t.mode, t.permits, t.limit, t.owner, t.note)
		default:
			to = append(to, strconv.Itoa(releaseTerms+len(g)*len(o.own)), t.abandon)
		}
		for _, i := range g {
			to = append(to, b.ops[i].own...)
		}
	}
	return to
}

// tell delivers the answers to the operations.
func (b *batch) tell(answers []program.Reply) {
	for k, g := range b.groups {
		list, err := answerOf(answers, k)
		o := b.ops[g[0]]
		switch {
		case err != nil, o.own == nil:
			for _, i := range g {
				b.ops[i].tell(list, err)
			}
		case list[0].S == "EACH":
			for n, i := range g {
				b.ops[i].tell(answerOf(list[1:], n))
			}
		case list[0].S == "ALL" && o.verb == opRelease:
			for _, i := range g {
				b.ops[i].tell([]program.Reply{program.Int(1)}, nil)
			}
		case list[0].S == "ALL" && len(list) == 3: //nolint:mnd // ALL left since
			for _, i := range g {
				own := b.ops[i].own
				b.ops[i].tell([]program.Reply{
					program.Text("G"), program.Text(own[len(own)-1]), list[1], list[2], program.Text("0"), program.Int(0),
				}, nil)
			}
		default:
			for _, i := range g {
				b.ops[i].tell(nil, program.ErrReply)
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
		return nil, newServerError(d.Text())
	}
	return list, nil
}
