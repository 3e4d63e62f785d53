package zklock

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// Inspect returns the holders of the lock and its waiters. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Inspect(ctx context.Context, lock string) (backend.LockInfo, error) {
	if err := backend.ValidateName(lock); err != nil {
		return backend.LockInfo{}, err
	}
	ctx, done, err := b.sessions.Begin(ctx)
	if err != nil {
		return backend.LockInfo{}, err
	}
	defer done()
	l, err := b.controlLink(ctx)
	if err != nil {
		return backend.LockInfo{}, b.fail(ctx, opInspect, err, false)
	}
	now, err := b.look(ctx, l, b.lockPath(lock), true)
	if err != nil {
		return backend.LockInfo{}, b.fail(ctx, opInspect, err, false)
	}
	info, err := b.describe(ctx, l, lock, now)
	return info, b.fail(ctx, opInspect, err, false)
}

// sawClock records the leader's wall clock, from a node that was written just now.
func (b *Backend) sawClock(stat *zk.Stat) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clock.at = time.Now()
	b.clock.ahead = time.UnixMilli(stat.Mtime).Sub(b.clock.at.Round(0))
}

// leaderNow returns an estimate of the leader's wall clock.
func (b *Backend) leaderNow(ctx context.Context, l *link) (time.Time, error) {
	const fresh = time.Minute
	b.mu.Lock()
	clock := b.clock
	b.mu.Unlock()
	if clock.at.IsZero() || time.Since(clock.at) > fresh {
		stat, err := call(ctx, l, func() (*zk.Stat, error) { return l.conn.Set(b.locksPath(), nil, -1) })
		if err != nil {
			return time.Time{}, err
		}
		b.sawClock(stat)
		return time.UnixMilli(stat.Mtime), nil
	}
	return time.Now().Round(0).Add(clock.ahead), nil
}

// gets bounds how many nodes are read concurrently.
const gets = 32

// describe reads the contents of the entries.
func (b *Backend) describe(ctx context.Context, l *link, lock string, now line) (backend.LockInfo, error) {
	if len(now.all) == 0 {
		return backend.LockInfo{Name: lock}, nil
	}
	clock, err := b.leaderNow(ctx, l)
	if err != nil {
		return backend.LockInfo{}, err
	}
	type node struct {
		content content
		stat    *zk.Stat
		gone    bool
	}
	renewed, err := b.renewals(ctx, l, now.all[:now.Out])
	if err != nil {
		return backend.LockInfo{}, err
	}
	nodes := make([]node, len(now.all))
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	slots := make(chan struct{}, gets)
	path := b.lockPath(lock)
	for i, e := range now.all {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			n, err := call(ctx, l, func() (node, error) {
				data, stat, err := l.conn.Get(path + "/" + e.node)
				n := node{stat: stat}
				_ = json.Unmarshal(data, &n.content) // for people only
				return n, err
			})
			if errors.Is(err, zk.ErrNoNode) {
				n, err = node{gone: true}, nil
			}
			mu.Lock()
			defer mu.Unlock()
			nodes[i] = n
			failed = errors.Join(failed, err)
		})
	}
	wg.Wait()
	if failed != nil {
		return backend.LockInfo{}, failed
	}
	info := backend.LockInfo{Name: lock}
	info.Limit, _ = backend.LimitInForce(now.Claims)
	for i, e := range now.all {
		n := nodes[i]
		if n.gone {
			continue
		}
		since := time.UnixMilli(n.stat.Ctime)
		if i >= now.Out {
			info.Waiters = append(info.Waiters, backend.Waiter{
				Lease: e.lease, Session: e.session, Owner: n.content.Owner, Note: n.content.Note,
				Mode: e.claim.Mode, Permits: e.claim.Permits, Since: since,
			})
			continue
		}
		if n.content.Since > 0 {
			since = time.Unix(0, n.content.Since)
		}
		if e.claim.Mode == backend.Exclusive {
			info.Limit = 1
		}
		at, ok := renewed[e.session]
		if !ok {
			at = clock
		}
		token := fence.Token(n.stat.Czxid) //nolint:gosec // it counts up from 0
		info.Token = max(info.Token, token)
		info.Holders = append(info.Holders, backend.Holder{
			Lease: e.lease, Session: e.session, Owner: n.content.Owner, Note: n.content.Note, Mode: e.claim.Mode,
			Permits: e.claim.Permits, Token: token, Since: since,
			Left: max(0, at.Add(time.Duration(n.content.TTL)).Sub(clock)),
		})
	}
	return info, nil
}

// renewals reads when the sessions of the entries were renewed, by the leader's wall clock.
// Sessions that are gone are omitted.
func (b *Backend) renewals(ctx context.Context, l *link, all []entry) (map[backend.SessionID]time.Time, error) {
	renewed := make(map[backend.SessionID]time.Time)
	asked := make(map[backend.SessionID]bool)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	slots := make(chan struct{}, gets)
	for _, e := range all {
		if asked[e.session] {
			continue
		}
		asked[e.session] = true
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			stat, err := call(ctx, l, func() (*zk.Stat, error) {
				there, stat, err := l.conn.Exists(b.sessionPath(e.session))
				if !there {
					stat = nil
				}
				return stat, err
			})
			mu.Lock()
			defer mu.Unlock()
			if err == nil && stat != nil {
				renewed[e.session] = time.UnixMilli(stat.Mtime)
			}
			failed = errors.Join(failed, err)
		})
	}
	wg.Wait()
	return renewed, failed
}

// List returns the locks that are held or waited for, by name. It reads the names of all locks.
// Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	if err := req.Validate(); err != nil {
		return backend.ListPage{}, err
	}
	ctx, done, err := b.sessions.Begin(ctx)
	if err != nil {
		return backend.ListPage{}, err
	}
	defer done()
	page, err := b.list(ctx, &req)
	if err != nil {
		return backend.ListPage{}, b.fail(ctx, opList, err, false)
	}
	return page, nil
}

func (b *Backend) list(ctx context.Context, req *backend.ListRequest) (backend.ListPage, error) {
	l, err := b.controlLink(ctx)
	if err != nil {
		return backend.ListPage{}, err
	}
	nodes, err := call(ctx, l, func() ([]string, error) {
		if _, err := l.conn.Sync(b.cfg.Path); err != nil {
			return nil, err
		}
		nodes, _, err := l.conn.Children(b.locksPath())
		return nodes, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return backend.ListPage{}, nil
	}
	if err != nil {
		return backend.ListPage{}, err
	}
	var names []string
	for _, n := range nodes {
		if name, ok := backend.UnescapeSegment(n); ok && name > req.After && strings.HasPrefix(name, req.Prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	limit := req.Limit
	if limit == 0 {
		limit = backend.MaxListLimit
	}
	var page backend.ListPage
	for _, name := range names {
		now, err := b.look(ctx, l, b.lockPath(name), false)
		if err != nil {
			return backend.ListPage{}, err
		}
		if len(now.all) == 0 {
			continue // it is not collected yet
		}
		if len(page.Locks) == limit {
			page.Next = page.Locks[limit-1].Name
			break
		}
		info, err := b.describe(ctx, l, name, now)
		if err != nil {
			return backend.ListPage{}, err
		}
		page.Locks = append(page.Locks, info)
	}
	return page, nil
}

// Watch returns ErrUnsupported: the client library cannot watch a whole tree.
func (b *Backend) Watch(ctx context.Context, req backend.WatchRequest, _ func(backend.Event)) error {
	if err := backend.ValidatePrefix(req.Prefix); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return backend.ErrUnsupported
}
