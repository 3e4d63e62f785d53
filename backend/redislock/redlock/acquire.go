package redlock

import (
	"context"
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
	switch {
	case err == nil:
		return g, nil
	case b.base.Err() != nil:
		return backend.Grant{}, backend.ErrClosed
	case ctx.Err() != nil && req.Wait:
		return backend.Grant{}, context.Cause(ctx)
	}
	return backend.Grant{}, toKind(ctx, opAcquire, err, a.mayHold)
}

// acquisition is one Acquire in progress.
type acquisition struct {
	b       *Backend
	req     backend.AcquireRequest
	claim   backend.Claim
	quorum  int
	pause   time.Duration   // before the next round when votes were split
	keeps   int             // how often the votes were kept
	attempt int64           // in progress, or of the votes that were kept; 0: none
	mayHold bool            // there may be a quorum of votes, of this round and of those before
	traces  [MaxNodes]trace // by node; guarded by Backend.mu
}

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
			a.giveUp()
			return backend.Grant{}, v.err
		}
		if !retry.Pause(ctx, v.again) {
			a.giveUp()
			return backend.Grant{}, context.Cause(ctx)
		}
	}
}

// ballot is what the nodes answered in one round.
type ballot struct {
	p      *poll
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
	ghosts uint64 // by node: it has a vote from before it may have lost data, which does not count
}

// ticket is the vote of one node.
type ticket struct {
	token fence.Token
	left  time.Duration
	since time.Time
	final bool
	old   bool // it was given to another attempt
}

// readTicket reads a vote. It returns nil for any other answer.
func readTicket(d *decoder) *ticket {
	if d.Text() != "G" {
		return nil
	}
	t := &ticket{token: fence.Token(d.Number())} //nolint:gosec // not negative
	t.left, t.since = d.Micros(), time.UnixMicro(d.Number())
	t.final = d.Number() == 1
	t.old = d.Number() == 1
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
	bal := &ballot{got: make([]*ticket, len(b.nodes)), others: make([][]vote, len(b.nodes))}
	bal.p = b.ask(a.request())
	err = bal.p.collect(ctx, func(x answer) need {
		bal.take(x)
		return bal.needs(a)
	})
	if err != nil {
		a.leaves(bal)
		a.giveBack(bal, false)
		return verdict{kind: failed, err: err}
	}
	if bal.n >= a.quorum {
		return a.conclude(ctx, bal)
	}
	a.leaves(bal)
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
	a.giveBack(bal, false)
	return v
}

func (a *acquisition) request() request {
	r, mode := &a.req, "x"
	if r.Mode == backend.Shared {
		mode = "s"
	}
	return request{
		verb: opAcquire, lock: r.Name, own: []string{r.Name, string(r.Lease), itoa(a.attempt), itoa(a.b.clock())},
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
	d := decode(x.list)
	if t := readTicket(&d); t != nil {
		bal.got[x.node] = t
		bal.n++
		bal.old = bal.old || t.old
		return
	}
	d = decode(x.list)
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
			bal.ghosts |= 1 << x.node
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
	case bal.n+bal.p.left < a.quorum:
		if a.blocked(bal, bal.p.silent()).kind != inDoubt {
			return nobody
		}
	case bal.old: // any node may be needed to find its token
		return everyone
	case bal.n >= a.quorum:
		return nobody
	}
	if bal.p.good >= a.quorum {
		return soon
	}
	return everyone
}

// leads reports whether no other lease has more votes of the lock, so that this one may keep
// its votes while the others release theirs. Of equals the one with the smallest ID leads.
func (a *acquisition) leads(bal *ballot) bool {
	count := tally(bal.others)
	for lease, c := range count {
		if c.n > bal.n || c.n == bal.n && lease < a.req.Lease {
			return false
		}
	}
	return bal.n > 0
}

// contender is another lease that has votes.
type contender struct {
	vote
	n    int           // votes
	left time.Duration // of the last vote to end
}

// tally counts votes by lease. A lease exists since its first vote.
func tally(nodes [][]vote) map[backend.LeaseID]*contender {
	count := make(map[backend.LeaseID]*contender)
	for _, votes := range nodes {
		for _, v := range votes {
			c, ok := count[v.lease]
			if !ok {
				c = &contender{vote: v}
				count[v.lease] = c
			}
			c.n++
			c.left = max(c.left, v.left)
			if v.since.Before(c.since) {
				c.since = v.since
			}
		}
	}
	return count
}

// judge returns the reason for too few votes.
func (a *acquisition) judge(bal *ballot) verdict {
	b, p := a.b, bal.p
	n, bad := len(b.nodes), p.silent()-p.left
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
		return verdict{kind: failed, err: a.tooFew(p)}
	case n-bad-bal.clocks < a.quorum:
		return verdict{kind: failed, err: ErrClock}
	case n-bad-bal.clocks-len(bal.unripe) < a.quorum:
		lacking := a.quorum - (n - bad - bal.clocks - len(bal.unripe))
		return verdict{kind: failed, err: inQuarantine(opAcquire, n, bal.unripe, lacking, a.mayHold)}
	}
	return why
}

func (a *acquisition) tooFew(p *poll) error {
	err := p.failure()
	if p.good >= a.b.majority {
		err = a.b.noQuorum(p.good, a.quorum, p.errs)
	}
	return err
}

// blocked reports whether the leases in the way can have the lock: only a lease with a quorum
// has it. silent is the number of nodes that may know of more votes.
func (a *acquisition) blocked(bal *ballot, silent int) verdict {
	var sure, maybe, all []*contender
	for _, c := range tally(bal.others) {
		all = append(all, c)
		switch q := a.b.quorum(c.claim); {
		case c.n >= q:
			sure = append(sure, c)
			maybe = append(maybe, c)
		case c.n+silent >= q:
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
	p := a.b.ask(one("inspect", a.req.Name), voters...)
	err := p.collect(ctx, func(x answer) need {
		if x.err == nil {
			d := decode(x.list)
			d.Text()
			now := d.Number()
			d.Number() // the counter
			own := func(o vote) bool { return o.lease == a.req.Lease }
			all.others[x.node] = slices.DeleteFunc(d.votes(now), own)
			p.errs[x.node] = d.Err
		}
		return soon
	})
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
		out[i] = c.claim
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
		holders = append(holders, c.holder())
	}
	program.SortHolders(holders)
	return backend.NewHeldError(a.req.Name, holders, count, 0)
}

func (v *vote) holder() backend.Holder {
	return backend.Holder{
		Lease: v.lease, Owner: v.owner, Note: v.note, Mode: v.claim.Mode, Permits: v.claim.Permits,
		Token: v.token, Since: v.since, Left: v.left,
	}
}

// untilEnd returns the time until the first of them can end.
func untilEnd(cs []*contender) time.Duration {
	const most = 30 * time.Second
	d := most
	for _, c := range cs {
		d = min(d, c.left)
	}
	return d
}

// giveUp releases votes that were kept.
func (a *acquisition) giveUp() {
	if a.attempt == 0 {
		return
	}
	a.b.ask(one("back", a.req.Name, string(a.req.Lease), itoa(a.attempt), "1", "0").owed())
	a.forget()
}

func (a *acquisition) forget() { a.attempt, a.keeps = 0, 0 }

// turnstile serializes the calls for one lease, so that each sees the outcome of those
// before.
type turnstile struct {
	free chan struct{} // capacity 1
	n    int           // calls; guarded by Backend.mu
}

// turn waits for the other calls for the lease. The function that it returns must be called.
func (b *Backend) turn(ctx context.Context, lease backend.LeaseID) (func(), error) {
	b.mu.Lock()
	t, ok := b.asking[lease]
	if !ok {
		t = &turnstile{free: make(chan struct{}, 1)}
		b.asking[lease] = t
	}
	t.n++
	b.mu.Unlock()
	leave := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if t.n--; t.n == 0 {
			delete(b.asking, lease)
		}
	}
	select {
	case t.free <- struct{}{}:
		return func() { <-t.free; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
