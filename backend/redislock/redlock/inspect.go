package redlock

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Inspect returns the holders of the lock: the leases that have a quorum of the votes, or may
// have one on nodes that do not answer. The nodes do not know the waiters. Errors:
// *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	if err := backend.ValidateName(name); err != nil {
		return backend.LockInfo{}, err
	}
	ctx, cancel, err := b.begin(ctx)
	if err != nil {
		return backend.LockInfo{}, err
	}
	defer cancel()
	s, silent, err := b.readState(ctx, name)
	if err != nil {
		return backend.LockInfo{}, toKind(ctx, opInspect, err, false)
	}
	return b.describe(name, s, silent), nil
}

// state is what the nodes answered about one lock.
type state struct {
	counter fence.Token
	votes   [][]vote // by node
}

// readState queries the nodes about a lock. The second result is how many did not answer.
func (b *Backend) readState(ctx context.Context, name string) (*state, int, error) {
	s := &state{votes: make([][]vote, len(b.nodes))}
	p, err := b.ask(ctx, one("inspect", name), func(p *poll, x answer) need {
		if x.err == nil {
			d := decode(x.list)
			d.Text()
			now := d.Number()
			s.add(x.node, &d, now)
			p.errs[x.node] = d.Err
		}
		return everyone
	})
	if err == nil && p.good < b.majority {
		err = p.failure()
	}
	return s, p.silent(), err
}

func (s *state) add(node int, d *decoder, now int64) {
	s.counter = max(s.counter, d.Token())
	s.votes[node] = d.votes(now)
}

// describe returns the holders of a lock. silent is the number of nodes that may know of more
// votes.
func (b *Backend) describe(name string, s *state, silent int) backend.LockInfo {
	info := backend.LockInfo{Name: name}
	var held []backend.Claim
	for _, c := range tally(s.votes) {
		if len(c.votes)+silent < b.quorum(c.claim()) {
			continue // it lost, or was released
		}
		h := c.Holder
		h.Token, _ = settled(c.votes, b.majority)
		info.Holders = append(info.Holders, h)
		info.Token = max(info.Token, h.Token)
		held = append(held, c.claim())
	}
	info.Limit = backend.InfoLimit(held, nil)
	if len(info.Holders) == 0 {
		info.Token = s.counter
	}
	program.SortHolders(info.Holders)
	return info
}

// List returns the locks that are held, by name. A page can be shorter than the limit and
// still have a next one. Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	if err := req.Validate(); err != nil {
		return backend.ListPage{}, err
	}
	ctx, cancel, err := b.begin(ctx)
	if err != nil {
		return backend.ListPage{}, err
	}
	defer cancel()
	page, err := b.list(ctx, req)
	return page, toKind(ctx, opList, err, false)
}

func (b *Backend) list(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	states := make(map[string]*state)
	horizon := "" // a node has not listed what comes after it
	p, err := b.ask(ctx, many("list", req.Prefix, req.After, strconv.Itoa(req.Size())), func(p *poll, x answer) need {
		if x.err != nil {
			return everyone
		}
		d := decode(x.list)
		d.Text()
		now, more, last := d.Number(), d.Number(), ""
		for len(d.List) > 0 && d.Err == nil {
			one := d.sub()
			last = one.Text()
			s, ok := states[last]
			if !ok {
				s = &state{votes: make([][]vote, len(b.nodes))}
				states[last] = s
			}
			s.add(x.node, one, now)
			d.Err = one.Err
		}
		if more > 0 && (horizon == "" || last < horizon) {
			horizon = last
		}
		p.errs[x.node] = d.Err
		return everyone
	})
	switch {
	case err != nil:
		return backend.ListPage{}, err
	case p.good < b.majority:
		return backend.ListPage{}, p.failure()
	}
	return b.page(states, req.Size(), horizon, p.silent())
}

func (b *Backend) page(states map[string]*state, size int, horizon string, silent int) (backend.ListPage, error) {
	var names []string
	for name := range states {
		if horizon == "" || name <= horizon {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	page, err := lockstate.Page(size, names, func(name string) (backend.LockInfo, error) {
		return b.describe(name, states[name], silent), nil
	})
	page.Next = cmp.Or(page.Next, horizon)
	return page, err
}

// Watch returns ErrUnsupported: no node knows what was granted, only what it voted for.
func (b *Backend) Watch(_ context.Context, req backend.WatchRequest, _ func(backend.Event)) error {
	return lockstate.NoEvents(b.base, req)
}
