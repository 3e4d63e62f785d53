package redlock

import (
	"context"
	"math/bits"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/retry"
)

const (
	// trying is how long an acquire that does not wait retries while no lease can have the
	// lock because several split the votes.
	trying = 2 * time.Second
	// maxKeeps is how often in a row an acquire with the most votes keeps them.
	maxKeeps = 3
	// maxPause bounds the pause between two rounds while votes are split.
	maxPause = 100 * time.Millisecond
)

// Acquire takes the lock, or waits for it when req.Wait is set. Waiters in this process are
// served in the order of their arrival; among processes there is no order. Errors:
// *InvalidError, *LimitError, *HeldError, ErrLost, ErrUnsupported, *UnavailableError,
// ErrClosed, ctx's cause.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	if err := req.Validate(b.caps); err != nil {
		return backend.Grant{}, err
	}
	ctx, cancel, err := b.begin(ctx)
	if err != nil {
		return backend.Grant{}, err
	}
	defer cancel()
	a := &acquisition{b: b, req: req, claim: req.Claim(), pause: MinTTL / 100}
	a.quorum = b.quorum(a.claim)
	var g backend.Grant
	if req.Wait {
		g, err = a.wait(ctx)
	} else {
		g, err = a.try(ctx)
	}
	if err == nil {
		return g, nil
	}
	a.giveBack()
	switch {
	case b.base.Err() != nil:
		return backend.Grant{}, backend.ErrClosed
	case ctx.Err() != nil && req.Wait:
		return backend.Grant{}, context.Cause(ctx)
	}
	return backend.Grant{}, toKind(ctx, opAcquire, err, a.mayHold())
}

// acquisition is one Acquire in progress.
type acquisition struct {
	b       *Backend
	req     backend.AcquireRequest
	claim   backend.Claim
	quorum  int
	pause   time.Duration // before the next round when votes were split
	keeps   int           // how often the votes were kept
	attempt int64         // in progress, or of the votes that were kept; 0: none
	traces  uint64        // by node: the attempt may have left a vote, or a request that may still get one
	ever    uint64        // the same, of all attempts: it is not known whether they were returned
}

// mayHold reports whether there may be a quorum of votes, of this round and of those before.
func (a *acquisition) mayHold() bool { return bits.OnesCount64(a.ever) >= a.quorum }

// verdict is the result of a round.
type verdict struct {
	kind  outcome
	grant backend.Grant
	err   error         // of all but granted
	again time.Duration // of held, split and inDoubt: when a retry makes sense
}

type outcome uint8

const (
	granted outcome = iota
	held            // other leases have it
	split           // no lease can have it: retry
	inDoubt         // other leases may have it, because nodes that do not answer may know of more votes
	failed
)

// try runs rounds until it is known who has the lock, or its retries are used up.
func (a *acquisition) try(ctx context.Context) (backend.Grant, error) {
	const mostInDoubt = 6
	began, doubts := time.Now(), 0
	for {
		v := a.round(ctx)
		switch v.kind {
		case granted:
			return v.grant, nil
		case split:
		case inDoubt:
			doubts++
		case held, failed:
			return backend.Grant{}, v.err
		}
		if time.Since(began) > trying || doubts > mostInDoubt {
			return backend.Grant{}, v.err
		}
		if !retry.Pause(ctx, v.again) {
			return backend.Grant{}, context.Cause(ctx)
		}
	}
}

// ballot is what the nodes answered in one round.
type ballot struct {
	p      *poll
	floor  int64     // what the votes' tokens are at least
	got    []*ticket // by node; nil where there is no vote
	n      int       // votes
	others [][]vote  // by node: the votes in the way
	more   bool      // a node did not list all votes in the way
	most   int       // the number in the way on one node that did not list all
	unripe []time.Duration
	lost   bool
	stale  int64
	clocks int
	old    bool   // a vote was given to another attempt
	traces uint64 // by node: it has a vote of the lease, which may not count
}

// ticket is the vote of one node.
type ticket struct {
	token fence.Token
	left  time.Duration
	since time.Time
	final bool
	old   bool // it was given to another attempt
}

// ticket reads a vote. It returns nil for any other answer. A vote given the short way has the floor as its token.
func (bal *ballot) ticket(list []program.Reply) *ticket {
	d := decode(list)
	t := new(ticket)
	switch d.Text() {
	case shortWay:
		*t = ticket{token: fence.Token(bal.floor), left: d.Micros(), since: d.Instant()} //nolint:gosec // not negative
	case "G":
		*t = ticket{token: d.Token(), left: d.Micros(), since: d.Instant(), final: d.Number() == 1, old: d.Number() == 1}
	default:
		return nil
	}
	if d.Err != nil {
		return nil
	}
	return t
}

// round asks all nodes once. It releases the votes unless they are a quorum, or the most that
// any lease has.
func (a *acquisition) round(ctx context.Context) verdict {
	b := a.b
	leave, err := b.turn(ctx, a.req.Lease)
	if err != nil {
		return verdict{kind: failed, err: err}
	}
	defer leave()
	if a.attempt == 0 {
		a.attempt = b.attempt(0)
	}
	began := time.Now()
	bal := &ballot{floor: b.clock(), got: make([]*ticket, len(b.nodes)), others: make([][]vote, len(b.nodes))}
	bal.p, err = b.ask(ctx, a.request(bal.floor), func(p *poll, x answer) need {
		bal.p = p
		bal.take(x)
		return bal.needs(a)
	})
	a.leaves(bal)
	if err != nil {
		a.giveBack()
		return verdict{kind: failed, err: err}
	}
	if bal.n >= a.quorum {
		return a.conclude(ctx, bal)
	}
	v := a.judge(bal)
	if v.kind == split && bal.n > 0 && a.claim.Mode == backend.Shared && a.claim.Limit > 0 {
		v = a.recount(ctx, bal, v)
	}
	switch {
	case v.kind == split && a.leads(bal) && a.keeps < maxKeeps:
		a.keeps++
		v.again = retry.About(min(time.Since(began), maxPause))
		return v
	case v.kind == split || v.kind == inDoubt:
		a.pause = min(2*max(a.pause, time.Since(began)/2), maxPause)
		v.again = retry.About(a.pause)
	}
	a.giveBack()
	return v
}

func (a *acquisition) request(floor int64) request {
	r, mode := &a.req, "x"
	if r.Mode == backend.Shared {
		mode = "s"
	}
	return request{
		verb: opAcquire, lock: r.Name, args: []string{r.Name, string(r.Lease), itoa(a.attempt), itoa(floor)},
		terms: terms{
			ttl: program.Millis(r.TTL), mode: mode, permits: strconv.Itoa(a.claim.Permits), limit: strconv.Itoa(a.claim.Limit),
			owner: r.Owner, note: r.Note,
		},
	}
}

// take records the answer of a node.
func (bal *ballot) take(x answer) {
	if x.err != nil {
		return
	}
	if t := bal.ticket(x.list); t != nil {
		bal.got[x.node] = t
		bal.traces |= 1 << x.node
		bal.n++
		bal.old = bal.old || t.old
		return
	}
	d := decode(x.list)
	switch d.Text() {
	case "H":
		now, n := d.Number(), d.Number()
		bal.others[x.node] = d.votes(now)
		if int64(len(bal.others[x.node])) < n {
			bal.more, bal.most = true, max(bal.most, int(n))
		}
	case "Q":
		bal.unripe = append(bal.unripe, d.Micros())
		if d.Number() == 1 {
			bal.traces |= 1 << x.node
		}
	case "L":
		bal.lost = true
	case "S":
		bal.stale = max(bal.stale, d.Number())
	case "C":
		bal.clocks++
	default:
		d.Err = program.ErrReply
	}
	if d.Err != nil {
		bal.p.errs[x.node] = d.Err
	}
}

// needs returns which answers still make a difference.
func (bal *ballot) needs(a *acquisition) need {
	switch {
	case bal.lost:
		return nobody
	case bal.n+bal.p.left() < a.quorum:
		if a.blocked(bal, bal.p.silent()).kind != inDoubt {
			return nobody
		}
	case bal.old: // any node may be needed to find its token
		return everyone
	}
	return bal.p.enough(a.quorum, bal.n >= a.quorum)
}

// leads reports whether no other lease has more votes of the lock, so that this one may keep
// its votes while the others release theirs. Of equals the one with the smallest ID leads.
func (a *acquisition) leads(bal *ballot) bool {
	for lease, c := range tally(bal.others) {
		if n := len(c.votes); n > bal.n || n == bal.n && lease < a.req.Lease {
			return false
		}
	}
	return bal.n > 0
}

// contender is another lease that has votes.
type contender struct {
	vote  // since the first of its votes, until the last one ends
	votes []vote
}

// tally counts votes by lease.
func tally(nodes [][]vote) map[backend.LeaseID]*contender {
	count := make(map[backend.LeaseID]*contender)
	for _, v := range slices.Concat(nodes...) {
		c, ok := count[v.Lease]
		if !ok {
			c = &contender{vote: v}
			count[v.Lease] = c
		}
		c.votes = append(c.votes, v)
		c.Left = max(c.Left, v.Left)
		if v.Since.Before(c.Since) {
			c.Since = v.Since
		}
	}
	return count
}

// judge returns the reason for too few votes.
func (a *acquisition) judge(bal *ballot) verdict {
	b, p := a.b, bal.p
	n, bad := len(b.nodes), p.silent()-p.left()
	why := a.blocked(bal, p.silent())
	switch {
	case bal.lost:
		return verdict{kind: failed, err: backend.ErrLost}
	case bal.stale > 0:
		a.b.attempt(bal.stale)
		return verdict{kind: split, err: errContended}
	case why.kind == held:
		return why
	case n-bad < a.quorum:
		return verdict{kind: failed, err: b.noQuorum(p.good, a.quorum, p.reasons())}
	case n-bad-bal.clocks < a.quorum:
		return verdict{kind: failed, err: ErrClock}
	case n-bad-bal.clocks-len(bal.unripe) < a.quorum:
		lacking := a.quorum - (n - bad - bal.clocks - len(bal.unripe))
		return verdict{kind: failed, err: inQuarantine(opAcquire, n, bal.unripe, lacking, a.mayHold())}
	}
	return why
}

// blocked reports whether the leases in the way can have the lock: only a lease with a quorum
// has it. silent is the number of nodes that may know of more votes.
func (a *acquisition) blocked(bal *ballot, silent int) verdict {
	var sure, maybe, all []*contender
	for _, c := range tally(bal.others) {
		all = append(all, c)
		switch n, q := len(c.votes), a.b.quorum(c.claim()); {
		case n >= q:
			sure = append(sure, c)
			maybe = append(maybe, c)
		case n+silent >= q:
			maybe = append(maybe, c)
		}
	}
	if bal.more && len(sure) == 0 {
		sure = all // there are so many that each node lists a part of them, and not the same part
	}
	if bal.more || !a.fits(sure) {
		return verdict{kind: held, err: a.refusal(sure, bal.most), again: untilEnd(sure)}
	}
	if !a.fits(maybe) {
		return verdict{kind: inDoubt, err: a.refusal(maybe, bal.most)}
	}
	return verdict{kind: split, err: errContended}
}

// recount asks the nodes that voted for the lease which other votes they have. The holders of a
// semaphore may each have their quorum on other nodes, so that all permits are held although
// some nodes have one left.
func (a *acquisition) recount(ctx context.Context, bal *ballot, v verdict) verdict {
	var voters []int
	for i, t := range bal.got {
		if t != nil {
			voters = append(voters, i)
		}
	}
	all := &ballot{others: slices.Clone(bal.others), more: bal.more, most: bal.most}
	p, err := a.b.ask(ctx, one("inspect", a.req.Name), func(p *poll, x answer) need {
		if x.err == nil {
			d := decode(x.list)
			d.Text()
			now := d.Number()
			d.Number() // the counter
			own := func(o vote) bool { return o.Lease == a.req.Lease }
			all.others[x.node] = slices.DeleteFunc(d.votes(now), own)
			p.errs[x.node] = d.Err
		}
		return soon
	}, voters...)
	if err != nil {
		return v
	}
	if why := a.blocked(all, bal.p.silent()+p.silent()); why.kind == held {
		return why
	}
	return v
}

func claims(cs []*contender) []backend.Claim {
	out := make([]backend.Claim, len(cs))
	for i, c := range cs {
		out[i] = c.claim()
	}
	return out
}

// fits reports whether the lease can be held together with these.
func (a *acquisition) fits(cs []*contender) bool {
	out := claims(cs)
	return a.claim.CheckLimit(a.req.Name, out) == nil && a.claim.Fits(out)
}

// refusal names the leases in the way. count is the number of votes on one node, if it did
// not list all of them.
func (a *acquisition) refusal(cs []*contender, count int) error {
	if err := a.claim.CheckLimit(a.req.Name, claims(cs)); err != nil {
		return err
	}
	var holders []backend.Holder
	for _, c := range cs {
		holders = append(holders, c.Holder)
	}
	program.SortHolders(holders)
	return backend.NewHeldError(a.req.Name, holders, count, 0)
}

// untilEnd returns the time until the first of them can end.
func untilEnd(cs []*contender) time.Duration {
	const most = 30 * time.Second
	d := most
	for _, c := range cs {
		d = min(d, c.Left)
	}
	return d
}

// leaves records what the round may have left on the nodes.
func (a *acquisition) leaves(bal *ballot) {
	a.traces |= bal.traces | bal.p.pending
	for i, err := range bal.p.errs {
		if err != nil && !unsent(err) {
			a.traces |= 1 << i
		}
	}
	a.ever |= a.traces
}

// giveBack releases the votes of the attempt, also those that are still to come, and those on
// nodes that do not answer now. Where they may be a quorum the lease may have been seen as the
// holder, so that waiters must be notified.
func (a *acquisition) giveBack() {
	told := bits.OnesCount64(a.traces) >= a.quorum
	for i, n := range a.b.nodes {
		if a.traces&(1<<i) != 0 {
			n.submit(&op{request: one(opBack, a.req.Name, string(a.req.Lease), itoa(a.attempt), flag(told))})
		}
	}
	a.attempt, a.keeps, a.traces = 0, 0, 0
}

// turn waits for the other calls for the lease, so that each sees the outcome of those before.
// The function that it returns must be called.
func (b *Backend) turn(ctx context.Context, lease backend.LeaseID) (func(), error) {
	for {
		b.mu.Lock()
		ended, busy := b.asking[lease]
		if !busy {
			mine := make(chan struct{})
			b.asking[lease] = mine
			b.mu.Unlock()
			return func() {
				b.mu.Lock()
				defer b.mu.Unlock()
				delete(b.asking, lease)
				close(mine)
			}, nil
		}
		b.mu.Unlock()
		select {
		case <-ended:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
