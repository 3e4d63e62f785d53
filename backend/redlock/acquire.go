package redlock

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

const (
	// trying is for how long one that does not wait asks again while nobody can have the
	// lock, but several split the votes.
	trying = 2 * time.Second
	// maxKeeps is how often in a row one that has the most votes keeps them.
	maxKeeps = 3
	// maxPause bounds the pause between two rounds while votes are split.
	maxPause = 100 * time.Millisecond
)

// Acquire takes the lock, or waits for it when req.Wait is set: in the order of their
// coming where several wait in this process, in none among processes. Errors:
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

// acquisition is one Acquire under way.
type acquisition struct {
	b       *Backend
	req     backend.AcquireRequest
	claim   backend.Claim
	quorum  int
	pause   time.Duration // before the next round when votes were split
	keeps   int           // how often the votes were kept
	attempt int64         // under way, or of the votes that were kept; 0: none
	mayHold bool
}

// verdict is what became of a round.
type verdict struct {
	kind  outcome
	grant backend.Grant
	err   error         // of failed, and of held
	again time.Duration // of held and split: when it is worth asking again
}

type outcome uint8

const (
	granted outcome = iota
	held            // others have it
	split           // nobody can have it: ask again
	unsure          // others may have it, as far as nodes that do not answer may know
	failed
)

// try asks until it is known who has the lock.
func (a *acquisition) try(ctx context.Context) (backend.Grant, error) {
	const mostUnsure = 6
	began, doubts := time.Now(), 0
	for {
		v := a.round(ctx)
		switch v.kind {
		case granted:
			return v.grant, nil
		case split:
		case unsure:
			doubts++
		case held, failed:
			return backend.Grant{}, v.err
		}
		if time.Since(began) > trying || doubts > mostUnsure {
			a.giveUp()
			return backend.Grant{}, v.err
		}
		if !a.b.sleep(ctx, v.again) {
			a.giveUp()
			return backend.Grant{}, context.Cause(ctx)
		}
	}
}

// ballot is what the nodes said in one round.
type ballot struct {
	p      *poll
	got    []*ticket // by node; nil where there is no vote
	n      int       // votes
	others [][]vote  // by node: who is in the way
	more   bool      // a node did not tell all who are
	most   int       // of those in the way on one node that did not tell all
	unripe []time.Duration
	lost   bool
	stale  int64
	clocks int
	old    bool // a vote is from before this round
}

// ticket is the vote of one node.
type ticket struct {
	token fence.Token
	left  time.Duration
	since time.Time
	final bool
}

// readTicket reads a vote, and whether another attempt got it. It is nil for all other
// answers.
func readTicket(d *decoder) (*ticket, bool) {
	if d.text() != "G" {
		return nil, false
	}
	t := &ticket{token: fence.Token(d.number())} //nolint:gosec // not negative
	t.left, t.since = micros(d.number()), time.UnixMicro(d.number())
	t.final = d.number() == 1
	old := d.number() == 1
	if d.err != nil {
		return nil, false
	}
	return t, old
}

// round asks all nodes once. What it got is given back unless it was enough, or the most
// that anybody has.
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
		a.mayHold = bal.n+bal.p.unknown() >= a.quorum
		a.giveBack(bal, false)
		return verdict{kind: failed, err: err}
	}
	if bal.n >= a.quorum {
		return a.conclude(ctx, bal)
	}
	v := a.judge(bal)
	switch {
	case v.kind == split && a.leads(bal) && a.keeps < maxKeeps:
		a.keeps++
		v.again = jitter(min(time.Since(began), maxPause))
		return v
	case v.kind == split || v.kind == unsure:
		a.pause = min(2*max(a.pause, time.Since(began)/2), maxPause)
		v.again = jitter(a.pause)
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
			ttl: millis(r.TTL), mode: mode, permits: strconv.Itoa(a.claim.Permits), limit: strconv.Itoa(a.claim.Limit),
			owner: r.Owner, note: r.Note,
		},
	}
}

// take notes what a node said.
func (bal *ballot) take(x answer) {
	if x.err != nil {
		return
	}
	d := decoder{list: x.list}
	if t, old := readTicket(&d); t != nil {
		bal.got[x.node] = t
		bal.n++
		bal.old = bal.old || old
		return
	}
	d = decoder{list: x.list}
	switch d.text() {
	case "H":
		now, n := d.number(), d.number()
		bal.others[x.node] = d.votes(now)
		if int64(len(bal.others[x.node])) < n {
			bal.more, bal.most = true, max(bal.most, int(n))
		}
	case "Q":
		bal.unripe = append(bal.unripe, micros(d.number()))
	case "L":
		bal.lost = true
	case "S":
		bal.stale = max(bal.stale, d.number())
	case "C":
		bal.clocks++
	default:
		d.err = errAnswer
	}
	if d.err != nil {
		bal.p.errs[x.node] = d.err
	}
}

// needs says which answers still make a difference.
func (bal *ballot) needs(a *acquisition) need {
	switch {
	case bal.lost:
		return nobody
	case bal.n+bal.p.left < a.quorum:
		if a.blocked(bal, bal.p.silent()).kind != unsure {
			return nobody
		}
	case bal.old: // which token it has, all may have to say
		return everyone
	case bal.n >= a.quorum:
		return nobody
	}
	if bal.p.good >= a.quorum {
		return soon
	}
	return everyone
}

// leads reports whether nobody has more votes of the lock than this lease, so that it may
// keep them while the others give theirs back.
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
	left time.Duration // of the last of them
}

// tally counts votes by lease. A lease is there since its first vote.
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

// judge says why there were too few votes.
func (a *acquisition) judge(bal *ballot) verdict {
	b, p := a.b, bal.p
	n, bad := len(b.nodes), p.silent()-p.left
	a.mayHold = bal.n+p.unknown() >= a.quorum
	why := a.blocked(bal, p.silent())
	switch {
	case bal.lost:
		return verdict{kind: failed, err: backend.ErrLost}
	case bal.stale > 0:
		a.b.attempt(bal.stale)
		return verdict{kind: split, err: errContended}
	case why.kind == held:
		a.mayHold = false
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
		err = noQuorum(p.good, a.quorum, p.errs)
	}
	return err
}

// blocked says whether those in the way can have the lock: only who has a quorum does.
// silent is how many nodes may know of more votes.
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
		sure = all // so many share it that a node names a part of them, and each another
	}
	if bal.more || !a.fits(sure) {
		return verdict{kind: held, err: a.refusal(sure, bal.most), again: untilEnd(sure)}
	}
	if !a.fits(maybe) {
		return verdict{kind: unsure, err: a.refusal(maybe, bal.most)}
	}
	return verdict{kind: split, err: errContended}
}

func claims(cs []*contender) []backend.Claim {
	out := make([]backend.Claim, len(cs))
	for i, c := range cs {
		out[i] = c.claim
	}
	return out
}

// fits reports whether the lease can be out together with these.
func (a *acquisition) fits(cs []*contender) bool {
	out := claims(cs)
	if limit, ok := backend.LimitInForce(out); ok && a.claim.Mode == backend.Shared && limit != a.claim.Limit {
		return false
	}
	return a.claim.Fits(out)
}

// refusal names those in the way; count is how many votes one node has, where it did not
// tell all of them.
func (a *acquisition) refusal(cs []*contender, count int) error {
	if limit, ok := backend.LimitInForce(claims(cs)); ok && a.claim.Mode == backend.Shared && limit != a.claim.Limit {
		return &backend.LimitError{Name: a.req.Name, Asked: a.claim.Limit, InForce: limit}
	}
	var holders []backend.Holder
	for _, c := range cs {
		holders = append(holders, c.holder())
	}
	sortHolders(holders)
	return backend.NewHeldError(a.req.Name, holders, count, 0)
}

func (v *vote) holder() backend.Holder {
	return backend.Holder{
		Lease: v.lease, Owner: v.claim.Owner, Note: v.note, Mode: v.claim.Mode, Permits: v.claim.Permits,
		Token: v.token, Since: v.since, Left: v.left,
	}
}

// sortHolders puts holders in the order of their grants.
func sortHolders(hs []backend.Holder) {
	slices.SortFunc(hs, func(x, y backend.Holder) int {
		return cmp.Or(cmp.Compare(x.Token, y.Token), x.Since.Compare(y.Since), cmp.Compare(x.Lease, y.Lease))
	})
}

// untilEnd is when the first of them can end.
func untilEnd(cs []*contender) time.Duration {
	const most = 30 * time.Second
	d := most
	for _, c := range cs {
		d = min(d, c.left)
	}
	return d
}

// giveBack takes back the votes of the attempt, also those that are still to come. told:
// it may have been taken for the holder, so that those who wait must hear of it.
func (a *acquisition) giveBack(bal *ballot, told bool) {
	back := func(late bool) *op {
		return &op{request: one("back", a.req.Name, string(a.req.Lease), itoa(a.attempt), flag(late), flag(told)).owed()}
	}
	for i, n := range a.b.nodes {
		switch err := bal.p.errs[i]; {
		case bal.got[i] != nil:
			n.submit(back(false))
		case bal.p.pending[i] || err != nil && !unsent(err):
			n.submit(back(true))
		}
	}
	a.forget()
}

// giveUp takes back votes that were kept.
func (a *acquisition) giveUp() {
	if a.attempt == 0 {
		return
	}
	a.b.ask(one("back", a.req.Name, string(a.req.Lease), itoa(a.attempt), "1", "0").owed())
	a.forget()
}

func (a *acquisition) forget() { a.attempt, a.keeps = 0, 0 }

// turnstile lets the calls for one lease through one by one, so that they see what became
// of each other.
type turnstile struct {
	free chan struct{} // capacity 1
	n    int           // calls; guarded by Backend.mu
}

// turn waits for the other calls for the lease. The function that it gives has to be
// called.
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
