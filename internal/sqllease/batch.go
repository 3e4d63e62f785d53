package sqllease

import (
	"context"
	"errors"
	"maps"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// Group commit. Concurrent requests share a transaction, a batch: two round trips and one wait
// for the disk, whatever the number of requests. While the maximum number of batches is in
// progress, requests queue up, and the next batch takes all of them. No two batches have a lock
// in common: they would wait for each other.

const (
	maxRequests = 256 // of one batch
	maxTries    = 8
	// gathering is how often other goroutines are let run before a batch takes the queue. The
	// caller that gets a lock and the one that released it send requests at about the same time,
	// and so do all the callers that a batch has answered. Without other callers it takes a few
	// microseconds.
	gathering = 16
	// batchTime bounds a batch, also where the server does not answer.
	batchTime = 10 * time.Second
)

// request is a request to the store.
type request struct {
	waiters.Request

	scope Scope
	// run executes the request in a transaction that may be undone and repeated. Its result is
	// the answer.
	run   func(*txn) error
	tends bool   // it ends what has expired in the whole queue, and its answer goes to no caller
	doubt bool   // an earlier attempt may have worked
	quick *quick // it may take one round trip
}

// newRequest returns a request that run executes.
func newRequest(op string, s Scope, run func(*txn) error) *request {
	r := &request{scope: s, run: run}
	r.Op = op
	r.Init()
	return r
}

// do executes a request on one lock, in a batch with other requests.
func (b *Leases) do(ctx context.Context, r *request) error {
	if err := b.Ready(ctx, r.Op); err != nil {
		return err
	}
	b.mu.Lock()
	if b.closed() {
		b.mu.Unlock()
		return backend.ErrClosed
	}
	b.queue = append(b.queue, r)
	b.launch()
	b.mu.Unlock()
	return r.Wait(ctx, b.life, b.store.Unavailable)
}

// launch starts a batch for the requests in the queue. Leases.mu is held.
func (b *Leases) launch() {
	if b.taking || b.closed() || len(b.queue) == 0 || b.running >= b.maxBatches {
		return
	}
	b.taking = true
	b.running++
	b.work.Go(func() {
		for range gathering {
			runtime.Gosched()
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.taking = false
		reqs, fast := b.takeBatch()
		if b.closed() || len(reqs) == 0 {
			b.running--
			return // the rest waits for a lock that is in another batch
		}
		b.launch() // another batch may start at the same time
		b.mu.Unlock()
		left := b.execute(reqs, fast)
		b.mu.Lock()
		b.running--
		for _, r := range reqs {
			delete(b.busy, r.scope.Names[0])
		}
		for _, g := range left {
			b.busy[g[0].scope.Names[0]] = struct{}{}
			b.work.Go(func() { b.executeAlone(g) })
		}
		b.launch()
	})
}

// takeBatch takes the requests of the next batch out of the queue. It reports whether all of them are
// quick, each for another lock: then they are all acquisitions, or all releases. Requests for one
// lock keep their order. Leases.mu is held.
func (b *Leases) takeBatch() ([]*request, bool) {
	var reqs, rest []*request
	var kind way
	mine, later := make(map[string]struct{}), make(map[string]struct{})
	for _, r := range b.queue {
		name := r.scope.Names[0]
		_, busy := b.busy[name]
		_, behind := later[name]
		_, again := mine[name]
		its := b.wayOf(r)
		if len(reqs) == 0 {
			kind = its
		}
		switch {
		case busy, behind, len(reqs) == b.most(kind), its != kind, again && kind != theLongWay:
			rest = append(rest, r)
			later[name] = struct{}{}
		case r.Take():
			reqs = append(reqs, r)
			mine[name] = struct{}{}
			if r.tends {
				delete(b.tending, name)
			}
		}
	}
	b.queue = rest
	for name := range mine {
		b.busy[name] = struct{}{}
	}
	return reqs, kind != theLongWay
}

// most returns how many requests a batch takes.
func (b *Leases) most(kind way) int {
	if kind == theLongWay {
		return maxRequests
	}
	return min(b.quick, maxRequests)
}

// alone executes a request in a transaction of its own, whatever the number of its locks.
func (b *Leases) alone(ctx context.Context, r *request) error {
	r.Take()
	ctx, stop := b.Within(ctx)
	defer stop()
	if sure, err := b.attempt(ctx, []*request{r}, true); err != nil {
		return b.said(r.Op, !sure, err)
	}
	return r.Err()
}

// execute executes the requests together. Where that fails because of one of them, or because another
// client keeps the row of a lock, it returns all of them, grouped by lock.
func (b *Leases) execute(reqs []*request, fast bool) [][]*request {
	ctx, cancel := context.WithTimeout(b.life, batchTime)
	defer cancel()
	if fast {
		if reqs = b.executeQuickly(ctx, reqs); len(reqs) == 0 {
			return nil
		}
	}
	sure, err := b.attempt(ctx, reqs, false)
	switch {
	case err == nil:
		return nil
	case sure && b.splits(err, reqs):
		return byLock(reqs)
	}
	b.fail(reqs, sure, err)
	return nil
}

// executeAlone executes the requests for one lock, which may have to wait for a row. Only a few run
// concurrently, so that connections are left for other requests.
func (b *Leases) executeAlone(reqs []*request) {
	ctx, cancel := context.WithTimeout(b.life, batchTime)
	defer cancel()
	select {
	case b.lone <- struct{}{}:
		if sure, err := b.attempt(ctx, reqs, true); err != nil {
			b.fail(reqs, sure, err)
		}
		<-b.lone
	case <-ctx.Done():
		b.fail(reqs, true, context.Cause(ctx))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.busy, reqs[0].scope.Names[0])
	b.launch()
}

// fail answers all requests with an error.
func (b *Leases) fail(reqs []*request, sure bool, err error) {
	for _, r := range reqs {
		r.Answer(b.said(r.Op, !sure || r.doubt, err))
	}
}

// said returns the error for the callers of a batch that failed.
func (b *Leases) said(op string, mayHold bool, err error) error {
	if b.closed() {
		return backend.ErrClosed
	}
	return b.store.Unavailable(op, mayHold, err)
}

func byLock(reqs []*request) [][]*request {
	groups := make(map[string][]*request)
	for _, r := range reqs {
		groups[r.scope.Names[0]] = append(groups[r.scope.Names[0]], r)
	}
	return slices.Collect(maps.Values(groups))
}

// attempt tries until the transaction is committed, or until there is an error against which a
// retry does not help. It also reports whether nothing was changed in the latter case.
func (b *Leases) attempt(ctx context.Context, reqs []*request, patient bool) (bool, error) {
	for try := 1; ; try++ {
		t := newTxn(b)
		sure, err := b.transact(ctx, t, reqs)
		if err == nil {
			return true, nil
		}
		if errors.Is(err, errMore) {
			continue
		}
		if !sure || ctx.Err() != nil || !slices.ContainsFunc(reqs, func(r *request) bool { return r.Wanted() }) || !b.Again(err, try, patient) {
			return sure, err
		}
		const longest = 200 * time.Millisecond
		if !retry.Pause(ctx, retry.Delay(try-1, time.Millisecond, longest)) {
			return sure, err
		}
	}
}

// Again reports whether to retry after an error that has changed nothing. patient: nothing else
// is delayed by waiting for a row.
func (b *Leases) Again(err error, try int, patient bool) bool {
	const afterBreak = 3
	f := b.store.Fault(err)
	switch {
	case f.Locked:
		return patient // another client holds the row: retry for as long as a batch lasts
	case f.Transient:
		return try < maxTries
	case f.Broken:
		b.store.Reset() // the other idle connections are no better
		return try < afterBreak
	}
	return false
}

// splits reports whether the error may be due to one of the requests, so that the others may
// succeed without it.
func (b *Leases) splits(err error, reqs []*request) bool {
	f := b.store.Fault(err)
	return f.Answered && (f.Locked || len(byLock(reqs)) > 1)
}

// transact executes the requests in one transaction, and answers them when it is committed. With
// an error it reports whether nothing was changed.
func (b *Leases) transact(ctx context.Context, t *txn, reqs []*request) (bool, error) {
	var s Scope
	for _, r := range reqs {
		s.add(&r.scope)
	}
	s.sorted()
	if len(s.Kill) == 0 {
		s.Front = b.front(s.Names)
		for _, r := range reqs {
			if r.tends && s.Front != nil {
				s.Front[r.scope.Names[0]] = math.MaxInt64
			}
		}
	}
	t.asked = time.Now()
	tx, view, err := b.store.Begin(ctx, &s)
	if err != nil {
		return true, err
	}
	defer tx.End(ctx)
	if err := t.read(view, &s); err != nil {
		return true, err
	}
	if err := t.again(ctx, tx, s.Kill); err != nil {
		return true, err
	}
	t.sort()
	answers := make([]error, len(reqs))
	t.expire()
	t.settle()
	for i, r := range reqs {
		answers[i] = r.run(t)
		t.settle()
	}
	if len(t.more) > 0 {
		b.readAll(t.more)
		return true, errMore
	}
	if c := t.changes(); rests(reqs, answers) || !c.empty() {
		c.Leases = append(c.Leases, c.inflated...)
		if refused, err := tx.Commit(ctx, c); err != nil {
			if !refused {
				b.doubt()
			}
			return refused, err
		}
	}
	b.known(t)
	b.stood(t)
	for _, f := range t.after {
		f()
	}
	b.calmed(t)
	for i, r := range reqs {
		r.Answer(answers[i])
	}
	return true, nil
}
