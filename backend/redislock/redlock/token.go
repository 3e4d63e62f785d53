package redlock

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// conclude makes a grant of enough votes: it settles the token, and checks that there is time
// left. If it is no grant after all, the votes are released.
func (a *acquisition) conclude(ctx context.Context, bal *ballot) verdict {
	token, err := a.settle(ctx, bal)
	if err != nil {
		a.giveBack()
		if ctx.Err() == nil && !errors.Is(err, backend.ErrClosed) {
			return verdict{kind: split, err: err, again: retry.About(a.pause)}
		}
		return verdict{kind: failed, err: err}
	}
	var lefts []time.Duration
	var since time.Time
	for _, t := range bal.got {
		if t == nil {
			continue
		}
		lefts = append(lefts, t.left)
		if since.IsZero() || t.since.Before(since) {
			since = t.since
		}
	}
	// The lease is held for as long as a quorum of its votes lasts.
	slices.Sort(lefts)
	left, asked := lefts[len(lefts)-a.quorum], bal.p.asked
	if time.Since(asked) >= left-drift(a.req.TTL) {
		a.giveBack()
		return verdict{kind: failed, err: backend.ErrLost}
	}
	a.inform(bal, token)
	return verdict{kind: granted, grant: backend.Grant{Token: token, Asked: asked, Left: left, Since: since}}
}

// inform sends the token that the lease got to the nodes whose vote has another one, so that
// all nodes report the same token later. It does not wait for the answers.
func (a *acquisition) inform(bal *ballot, token fence.Token) {
	tell := func(i int, t *ticket) {
		if t != nil && t.token != token {
			fix := one("fix", a.req.Name, string(a.req.Lease), strconv.FormatUint(uint64(token), 10))
			a.b.nodes[i].submit(&op{request: fix})
		}
	}
	for i, t := range bal.got {
		tell(i, t)
	}
	if bal.p.left() > 0 {
		bal.p.leave(func(x answer) {
			if x.err == nil {
				tell(x.node, bal.ticket(x.list))
			}
		})
	}
}

// drift returns how far the clocks of the nodes and ours may come apart within a TTL.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// settle returns the token of the lease: the greatest that its voters know, which a majority
// of all nodes has then recorded as this lease's own. So every later quorum has a node that
// knows it, and no other lease can have the same. See docs/backends/redlock.md.
func (a *acquisition) settle(ctx context.Context, bal *ballot) (fence.Token, error) {
	token, agreed, done := bal.proposal(a.b.majority)
	if done {
		return token, nil
	}
	const attempts = 16
	for range attempts {
		var nodes []int
		for i, t := range bal.got {
			if t != nil && !agreed[i] {
				nodes = append(nodes, i)
			}
		}
		acks, greatest, err := a.write(ctx, token, nodes, a.b.majority-len(agreed))
		if err != nil {
			return 0, err
		}
		if acks+len(agreed) >= a.b.majority {
			return token, nil
		}
		if greatest < token {
			break // votes are gone, or nodes: a greater token would not help
		}
		token = max(greatest+1, fence.Token(a.b.clock())) //nolint:gosec // not negative
		agreed = nil
		if !retry.Pause(ctx, retry.About(time.Millisecond)) {
			return 0, context.Cause(ctx)
		}
	}
	return 0, errTokens
}

// proposal returns the token to settle on, the nodes that have it as this lease's own, and
// whether these are enough.
func (bal *ballot) proposal(majority int) (fence.Token, map[int]bool, bool) {
	var token fence.Token
	have := make(map[fence.Token]int)
	for _, t := range bal.got {
		if t == nil {
			continue
		}
		have[t.token]++
		token = max(token, t.token)
	}
	if bal.old {
		// The lease was requested before: it keeps the token with which it may have been
		// granted, which a majority had.
		for t, n := range have {
			if n >= majority {
				token = t
			}
		}
		for _, t := range bal.got {
			if t != nil && t.final && have[token] < majority {
				token = t.token
			}
		}
	}
	agreed := make(map[int]bool)
	for i, t := range bal.got {
		if t != nil && t.token == token {
			agreed[i] = true
		}
	}
	return token, agreed, len(agreed) >= majority
}

// write makes the nodes record the token, until enough have. It returns how many did, and the
// greatest token that the others know.
func (a *acquisition) write(ctx context.Context, token fence.Token, nodes []int, enough int) (int, fence.Token, error) {
	if len(nodes) == 0 {
		return 0, 0, nil
	}
	acks := 0
	var greatest fence.Token
	write := one("write", a.req.Name, string(a.req.Lease), strconv.FormatUint(uint64(token), 10))
	_, err := a.b.ask(ctx, write, func(_ *poll, x answer) need {
		d := decode(x.list)
		if x.err == nil && d.Text() == "OK" {
			acks++
		} else {
			greatest = max(greatest, d.Token())
		}
		if acks >= enough {
			return nobody
		}
		return everyone
	}, nodes...)
	return acks, greatest, err
}
